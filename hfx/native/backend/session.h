// A session of ONNX Runtime, whose library is opened by its path and used by its C interface.
#pragma once
#include "../linear.h"
#include "../memory.h"
#include "../ort.h"
#include "config.h"

namespace hfx {

// The names of a net's inputs.
constexpr const char *IDS = "input_ids", *MASK = "attention_mask", *TYPES = "token_type_ids", *SHAPE = "item_shape";

class Session {
public:
    static constexpr size_t MOST_RANK = 8;

    ~Session();

    // Opens ONNX Runtime, and makes the session's options of a model's configuration; `folder` is the version folder.
    // Returns false with the reason in `error`, as all other functions do.
    [[nodiscard]] bool load(const Json &config, const char *folder, Text &error);
    // Opens the graph that the configuration names, with the options as they are now.
    [[nodiscard]] bool open(const Json &config, const char *folder, Text &error);
    // Closes the session if it is open, and makes the options again.
    [[nodiscard]] bool reset(const Json &config, Text &error);

    // Checks that the graph takes the inputs `needed`, besides TYPES, which sets `types`, and that it has the `output`.
    [[nodiscard]] bool check(const char *const *needed, size_t count, const char *output, bool &types, Text &error) const;
    // Reads an element's type, its name with a terminating zero, and the last size of its shape, which is -1 if the
    // graph leaves it open.
    [[nodiscard]] bool element(ort::Element kind, size_t index, int &type, Text &name, int64_t &width, Text &error) const;
    // Reads the shape of a tensor.
    [[nodiscard]] bool sizes(const ort::Value *value, int64_t *sizes, size_t &rank, Text &error) const;
    // Releases `status`, and returns whether it is an error.
    bool fails(ort::Status *status, Text &error) const;

    const ort::Api &api() const { return *api_; }
    ort::Session *handle() const { return session_; }
    ort::SessionOptions *options() const { return options_; }
    const ort::MemoryInfo *memory() const { return memory_; }  // the CPU's

private:
    bool open_library(const char *path, Text &error);
    bool numbers(const Json &config, Text &error);

    const ort::ApiBase *base_ = nullptr;
    const ort::Api *api_ = nullptr;
    ort::Env *env_ = nullptr;
    ort::SessionOptions *options_ = nullptr;
    ort::Session *session_ = nullptr;
    ort::MemoryInfo *memory_ = nullptr;
};

}  // namespace hfx
