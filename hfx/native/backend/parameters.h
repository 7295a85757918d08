// The settings of a request: tensors, and those of Triton's request parameters that are settings of the task.
#pragma once
#include "refusals.h"
#include "rows.h"

namespace hfx {

struct Parameter {
    enum Kind : uint8_t { STRING, INT, BOOL, BYTES, DOUBLE };  // numbered as in TRITONSERVER_ParameterType
    Span name;
    Kind kind = STRING;
    int64_t number = 0;  // of INT; of BOOL 0 or 1
    Span text;           // of STRING
};

// The settings of a model, one bit each: the inputs that callers may leave out.
using Options = uint32_t;
Options option_named(Span input);  // 0: the input is not a setting

// Refuses a request without its texts, or with numbers below 1. This is the first check of a request.
[[nodiscard]] bool check_inputs(Task task, const Inputs &inputs, Text &refusal);

// Adds the parameters to the settings of `inputs`, for all rows. Returns false if a parameter is none of `options`, has
// a value that can't be used, or differs from its tensor; or, with an empty `refusal`, if there is no memory.
// Parameters of Triton itself are ignored.
[[nodiscard]] bool apply_parameters(Options options, const Parameter *parameters, size_t count, Inputs &inputs, Text &refusal);

}  // namespace hfx
