// The host of a net on a GPU.
//
// A thread of its own opens the net and runs it (device_net.h). While a run computes, the thread begins the next one,
// and then sends the answers of the run before; the threads of Triton's instances turn texts into tokens.
#pragma once
#include "device_plan.h"
#include "host_thread.h"

namespace hfx {

class DeviceRunner final : public NetHost {
public:
    bool open(const NetOptions &options, int32_t &, Text &error) override;
    void release(int32_t) override { destroy(this); }
    void wake() override { thread_.wake(); }
    void begin() override;
    void run() override;
    bool has_types() const override { return net_.has_types(); }

private:
    // A run in the place of the same number.
    struct PendingRun {
        Array<Slice> slices;
        uint64_t began = 0, ended = 0;
        bool taken = false, computes = false;  // it has requests that are to be answered; they are not computed yet
    };

    bool begin_run(size_t place);
    bool next_slices(PendingRun &run, const PendingRun &other);
    bool submit(const Slice *slices, size_t count, size_t place);
    void fill(const Slice *slices, size_t count, size_t place, Shape shape) const;
    void wait(size_t place);
    void collect(const Slice *slices, size_t count, const float *output);
    void run_again(const Slice *slices, size_t count, size_t place);
    void give_up(const Slice *slices, size_t count);
    void answer(PendingRun &run);
    void lose(const Text &reason);

    DeviceNet net_;
    const NetOptions *options_ = nullptr;  // while the net is opened
    const Settings *settings_ = nullptr;
    DevicePlan plan_;
    PendingRun runs_[DeviceNet::PLACES];
    Array<Job *> done_;
    uint64_t last_ended_ = 0;
    Text reason_;
    bool opened_ = false, was_lost_ = false;
    HostThread thread_;  // ends first
};

}  // namespace hfx
