// Runs a net on a GPU for the requests of its queue, and has their model answer them.
//
// A thread of its own opens the net and runs it (device_net.h). While a run computes, the thread begins the next one,
// and then sends the answers of the run before; the threads of Triton's instances turn texts into tokens.
#pragma once
#include <pthread.h>
#include <semaphore.h>
#include "device_plan.h"
#include "queue.h"
#include "settings.h"

namespace hfx {

class DeviceRunner {
public:
    ~DeviceRunner();

    // Opens the net and starts the thread; the parameters are those of DeviceNet::open, and `settings`, which must outlive
    // this object. Returns false with the reason in `error`.
    [[nodiscard]] bool open(const Json &config, const char *folder, const char *output, int number, const Settings &settings, Text &error);
    // Has the thread run the requests in the queue.
    void wake() { sem_post(&waiting_); }

    bool has_types() const { return net_.has_types(); }

    Queue queue;

private:
    struct Opening;
    // A run in the place of the same number.
    struct Flight {
        Array<Slice> slices;
        uint64_t began = 0, ended = 0;
        bool taken = false, computes = false;  // it has requests that are to be answered; they are not computed yet
    };

    static void *serve(void *opening);
    void lead();
    bool launch(size_t place);
    bool next_run(Flight &flight, size_t &width, const Flight &other);
    void take(DevicePlan &plan, Job *batch);
    bool begin(const Slice *slices, size_t count, size_t width, size_t place);
    void fill(const Slice *slices, size_t count, size_t place, Shape shape) const;
    void arrive(size_t place);
    void collect(const Slice *slices, size_t count, const float *output);
    void run_again(const Slice *slices, size_t count, size_t place);
    void give_up(const Slice *slices, size_t count, const Text &reason);
    void answer(Flight &flight);
    void lose(const Text &reason);

    DeviceNet net_;
    const Settings *settings_ = nullptr;
    DevicePlan small_, large_[TURNS];
    size_t turn_ = 0;              // the large request of the last run
    bool large_was_last_ = false;  // the last run was of a large request, so that small ones are next
    bool was_lost_ = false;
    Flight flights_[DeviceNet::PLACES];
    uint64_t landed_ = 0;
    Text reason_;
    bool has_thread_ = false, ends_ = false;
    pthread_t thread_ = {};
    sem_t waiting_ = {};
};

}  // namespace hfx
