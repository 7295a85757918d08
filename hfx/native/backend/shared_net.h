// A net that models of this process share, which differ in a small file of weights: one session of ONNX Runtime, one
// queue, and batches of requests of several models. The first model opens it, and the last one closes it.
//
// A thread of its own runs the net. A thread of Triton, which would run requests of other models too, would keep its own
// model from being unloaded.
#pragma once
#include <pthread.h>
#include <semaphore.h>
#include "../tokenizer/tokenizer.h"
#include "pool.h"
#include "runner.h"

namespace hfx {

class SharedNet {
public:
    ~SharedNet();

    // Returns the net of `key` for one more model, or null if there is no memory. If `opens` is set, the caller has to
    // open the parts of the net and to call `start`. Waits while another model opens it. End the use with `release`.
    static SharedNet *acquire(Span key, bool &opens);
    static void release(SharedNet *net);

    // Starts the thread; from now on, other models use the net. Returns false with the reason in `error`.
    [[nodiscard]] bool start(Text &error);
    // Has the thread run the requests in the queue.
    void wake() { sem_post(&waiting_); }

    Runner runner;
    Pool pool;
    Tokenizer tokenizer;  // of the first model; other models use it if their files are equal

private:
    static void *serve(void *net);

    Text key_;
    SharedNet *next_ = nullptr;
    size_t users_ = 1;
    bool starts_ = true;  // the first model still opens it
    bool has_thread_ = false, ends_ = false;
    pthread_t thread_ = {};
    sem_t waiting_ = {};
};

}  // namespace hfx
