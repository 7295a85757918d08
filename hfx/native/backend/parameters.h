// The settings of a request: its tensors, and Triton's request parameters that are settings of the task.
#pragma once
#include "refusals.h"
#include "rows.h"

namespace hfx {

struct Parameter {
    enum Kind : uint8_t { STRING, INT, BOOL, BYTES, DOUBLE };  // as TRITONSERVER_ParameterType counts them
    Span name;
    Kind kind = STRING;
    int64_t number = 0;  // of INT; of BOOL 0 or 1
    Span text;           // of STRING
};

// The settings of a model, a bit each: those of its inputs that callers may leave out.
using Options = uint32_t;
Options option_named(Span input);  // 0: it is no setting

// Refuses a request without its texts, and numbers below 1: the first that is to be done with a request.
[[nodiscard]] bool check_inputs(Task task, const Inputs &inputs, Text &refusal);

// Adds the parameters to the settings of `inputs`, for all rows. False: one is none of `options`, or can't be taken, or
// its tensor says otherwise; or there is no memory, where `refusal` is empty. Those of Triton itself pass.
[[nodiscard]] bool apply_parameters(Options options, const Parameter *parameters, size_t count, Inputs &inputs, Text &refusal);

}  // namespace hfx
