// The net of an encoder on the CPU: one ONNX file in ONNX Runtime.
#pragma once
#include "pool.h"
#include "rows.h"
#include "session.h"

namespace hfx {

// One run's inputs: the tokens of its rows one after the other, and the shape of each row, [rows, rank]. `slots` has
// the slot of each sequence's model in the pool, if models share the net.
struct Feed {
    Array<int32_t> ids, mask, types, shapes, slots;
    size_t rows = 0, rank = 1;

    void clear() { ids.clear(), mask.clear(), types.clear(), shapes.clear(), slots.clear(), rows = 0; }
    // Adds the shapes of rows; their tokens and slots are added by the caller.
    [[nodiscard]] bool add_rows(size_t count, size_t sequences, size_t width);
};

// An output, [rows, ...].
struct Values {
    Array<float> data;
    Array<int64_t> shape;
};

class Net {
public:
    // Opens the net that the parameters of a model's configuration name; `folder` is the version folder. Returns false
    // with the reason in `error`.
    [[nodiscard]] bool open(const Json &config, const char *folder, const char *output, Text &error);
    // Has the net take a model's weights from `pool` in each run. Sets `stride` to their number, or to 0 if the graph
    // leaves it open. Returns false, with the reason in `error`, if the graph can't do so.
    [[nodiscard]] bool use(const Pool &pool, size_t &stride, Text &error);
    // Runs the net, and sets `made` to its output. Returns false with the reason in `error`, or if there is no memory.
    [[nodiscard]] bool run(const Feed &feed, Values &made, Text &error) const;

    bool has_types() const { return types_; }
    bool makes(const char *output) const { return !strcmp(output_.data(), output); }

private:
    bool take(ort::Value *value, size_t rows, Values &made, Text &error) const;

    Session session_;
    const Pool *pool_ = nullptr;
    Text output_;
    bool types_ = false;
};

}  // namespace hfx
