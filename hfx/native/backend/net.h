// The net of an encoder: one ONNX file in ONNX Runtime, by the C interface of a library that is opened by its path.
#pragma once
#include "../memory.h"
#include "../ort.h"
#include "config.h"
#include "rows.h"

namespace hfx {

// One run's inputs: the tokens of its rows one after the other, and the shape of each row, [rows, rank].
struct Feed {
    Array<int32_t> ids, mask, types, shapes;
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

    // By the parameters of a model's configuration; `folder` is its version folder. False: `error` says why.
    [[nodiscard]] bool open(const Json &config, const char *folder, const char *output, Text &error);
    // The output of one run; for one thread at a time. False: `error` says why, or there is no memory.
    [[nodiscard]] bool run(const Feed &feed, Values &made, Text &error) const;

    bool has_types() const { return types_; }

private:
    bool load(const char *library, Text &error);
    bool options(const Json &config, Text &error);
    bool numbers(const Json &config, Text &error);
    bool check(const char *output, Text &error);
    bool element(bool input, size_t index, int &type, Text &name, Text &error) const;
    bool fails(ort::Status *status, Text &error) const;
    bool take(ort::Value *value, size_t rows, Values &made, Text &error) const;

    const ort::ApiBase *base_ = nullptr;
    const ort::Api *api_ = nullptr;
    ort::SessionOptions *options_ = nullptr;
    ort::Session *session_ = nullptr;
    ort::MemoryInfo *memory_ = nullptr;
    Text output_;
    bool types_ = false;
};

}  // namespace hfx
