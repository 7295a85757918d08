// A net that models of this process share, which differ in a small file of weights: one session of ONNX Runtime, one
// queue, and batches of requests of several models. The first model opens it, and the last one closes it.
//
// A thread of its own runs the net. A thread of Triton, which would run requests of other models too, would keep its own
// model from being unloaded.
#pragma once
#include "host_thread.h"
#include "pool.h"
#include "runner.h"

namespace hfx {

constexpr const char *SHARED_NET = "shared_net";  // the parameter that has the key of a net

class SharedNet final : public NetHost {
public:
    // Returns the net of `key` for one more model, or null if there is no memory. Waits while another model opens it.
    static SharedNet *acquire(Span key);

    bool open(const NetOptions &options, int32_t &slot, Text &error) override;
    void release(int32_t slot) override;
    void wake() override { thread_.wake(); }
    void run() override { runner_.run(); }
    bool has_types() const override { return runner_.net.has_types(); }
    bool pads_logits() const override { return true; }

private:
    bool start(const NetOptions &options, const char *weights, Text &error);

    Text key_;
    SharedNet *next_ = nullptr;
    size_t users_ = 1;
    bool starts_ = true;  // the first model still opens it
    Runner runner_{queue};
    Pool pool_;
    HostThread thread_;  // ends first
};

}  // namespace hfx
