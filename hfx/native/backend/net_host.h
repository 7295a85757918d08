// The interface of what hosts a net: it has the queue of the net, and runs the net for the requests in the queue.
//
// There are three hosts. OwnNet (runner.h) runs a model's own net on a thread of Triton, SharedNet (shared_net.h) runs a
// net of several models on a thread of its own, and DeviceRunner (device_runner.h) does so with a net on a GPU.
#pragma once
#include "../tokenizer/tokenizer.h"
#include "config.h"
#include "queue.h"
#include "settings.h"

namespace hfx {

// What a model's configuration and settings say about its net. A net on a GPU reads the settings
// until it is released.
struct NetOptions {
    const Json &config;
    const Settings &settings;
    const char *folder, *output;  // the version folder, and the output that answers are made of
    int gpu;                      // the number of the GPU; -1: the net runs on the CPU
    Bound bound;
    bool skips_padding;
};

class NetHost {
public:
    // Opens the net for a model, or checks that the open net is the model's, too. Sets `slot` to the place of the
    // model's weights if models share the net. Returns false with the reason in `error`.
    [[nodiscard]] virtual bool open(const NetOptions &options, int32_t &slot, Text &error) = 0;
    // Ends the model's use of the net, also if `open` has failed. The host may be gone afterwards.
    virtual void release(int32_t slot) = 0;
    // Has the requests in the queue run, by this thread or another one, after `queue.add` has returned true.
    virtual void wake() = 0;
    // Has the second leader begin, after `queue.start_second` has returned true.
    virtual void wake_second() {}
    // The net's thread calls `begin` first, and `run`, which runs batch after batch until nothing waits, when it is woken.
    virtual void begin() {}
    virtual void run() = 0;

    virtual bool has_types() const = 0;
    // Whether models read only the first logits, because the net has as many as the model with most classes needs.
    virtual bool pads_logits() const { return false; }

    Queue queue;
    Tokenizer tokenizer;  // of the first model; other models use it if their files are equal

protected:
    ~NetHost() = default;
};

}  // namespace hfx
