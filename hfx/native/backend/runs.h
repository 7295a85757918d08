// Decides which requests share a run of the net: requests of one shape, or of similar widths if padding costs nearly
// nothing, so that each has the answer, to the bit, that it has alone. The rules are those of
// python_backends/onnxruntime/ragged.py.
#pragma once
#include "job.h"

namespace hfx {

// A function to call between two parts of a large job, if there is one.
struct Interlude {
    void (*function)(void *) = nullptr;
    void *argument = nullptr;
};

class Runs {
public:
    // Divides `jobs`, whose order changes, into runs. An item has `item_rank` sizes: 1 for a row of tokens, 2 for
    // several sequences.
    Runs(const Net &net, bool skips_padding, size_t item_rank, Array<Job *> &jobs, Interlude interlude);

    // Runs the net for the next jobs, and returns them, or null if all jobs have run. Jobs for which the net fails, or
    // which are cancelled by now, have failed; the others have the net's output.
    Job **next(size_t &count);

private:
    const Net &net_;
    const bool skips_padding_;
    const size_t item_rank_;
    Array<Job *> &jobs_;
    const Interlude interlude_;
    size_t at_ = 0;
};

}  // namespace hfx
