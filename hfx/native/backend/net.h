// The net of an encoder: one ONNX file in ONNX Runtime, whose library is opened by its path and used by its C
// interface.
#pragma once
#include "../memory.h"
#include "../ort.h"
#include "config.h"
#include "pool.h"
#include "rows.h"

namespace hfx {

// One run's inputs: the tokens of its rows one after the other, and the shape of each row, [rows, rank]. `slots` has
// the slot of each row's model in the pool, if models share the net.
struct Feed {
    Array<int32_t> ids, mask, types, shapes, slots;
    size_t rows = 0, rank = 1;
};

// An output, [rows, ...].
struct Values {
    Array<float> data;
    Array<int64_t> shape;
};

class Net {
public:
    ~Net();

    // Opens the net that the parameters of a model's configuration name; `folder` is the version folder. Returns false
    // with the reason in `error`.
    [[nodiscard]] bool open(const Json &config, const char *folder, const char *output, Text &error);
    // Has the net take a model's weights from `pool` in each run. Sets `stride` to their number, or to 0 if the graph
    // leaves it open. Returns false, with the reason in `error`, if the graph can't do so.
    [[nodiscard]] bool use(const Pool &pool, size_t &stride, Text &error);
    // Runs the net, and sets `made` to its output; for one thread at a time. Returns false with the reason in `error`,
    // or if there is no memory.
    [[nodiscard]] bool run(const Feed &feed, Values &made, Text &error) const;

    bool has_types() const { return types_; }
    bool makes(const char *output) const { return !strcmp(output_.data(), output); }

private:
    bool load(const char *library, Text &error);
    bool options(const Json &config, Text &error);
    bool numbers(const Json &config, Text &error);
    bool check(const char *output, Text &error);
    enum Element { INPUT, INITIALIZER, OUTPUT };
    bool element(Element kind, size_t index, int &type, Text &name, int64_t &width, Text &error) const;
    bool fails(ort::Status *status, Text &error) const;
    bool take(ort::Value *value, size_t rows, Values &made, Text &error) const;

    const ort::ApiBase *base_ = nullptr;
    const ort::Api *api_ = nullptr;
    ort::SessionOptions *options_ = nullptr;
    ort::Session *session_ = nullptr;
    ort::MemoryInfo *memory_ = nullptr;
    const Pool *pool_ = nullptr;
    Text output_;
    bool types_ = false;
};

}  // namespace hfx
