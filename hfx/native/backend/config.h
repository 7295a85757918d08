// Reads a model's configuration: config.pbtxt, as the JSON object that Triton passes to the backend. Parameters have
// the names and the meaning that they have in hfx/python_backends/onnxruntime/config.py.
#pragma once
#include "json.h"

namespace hfx {

// The text of a model's parameter; empty if the model does not have it.
inline Span parameter(const Json &config, const char *name) { return config["parameters"][name]["string_value"].text(); }
// Reads a parameter that is a whole number from `least` on; `value` stays if there is none. Returns false, with the
// reason in `error`, if it is anything else.
[[nodiscard]] bool whole_number(const Json &config, const char *name, long least, long &value, Text &error);
// Sets `path` to `folder`/`name`, or to `name` if that is absolute, with a terminating zero. Returns false if there is
// no memory.
[[nodiscard]] bool path_in(const char *folder, Span name, Text &path);

// Refuses a configuration that needs another queue, other devices or another runtime than this backend has. Sets `gpu` to
// the number of the GPU, or to -1 for the CPU.
[[nodiscard]] bool can_be_honoured(const Json &config, int &gpu, Text &error);

}  // namespace hfx
