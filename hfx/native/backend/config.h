// What is read of a model's configuration, config.pbtxt as the JSON object that Triton hands on: the names of parameters and
// their meaning are those of hfx/python_backends/onnxruntime/config.py.
#pragma once
#include "json.h"

namespace hfx {

// The text of a parameter of a model; empty where it has none.
inline Span parameter(const Json &config, const char *name) { return config["parameters"][name]["string_value"].text(); }
// A parameter that is a whole number from `least` on, `value` where there is none. False: `error` says that it is not.
[[nodiscard]] bool whole_number(const Json &config, const char *name, long least, long &value, Text &error);
// `folder`/`name`, or `name` where it is absolute; with a zero behind it.
[[nodiscard]] bool path_in(const char *folder, Span name, Text &path);

// Refuses what needs another queue, another device or another runtime than this backend has.
[[nodiscard]] bool can_be_honoured(const Json &config, Text &error);

}  // namespace hfx
