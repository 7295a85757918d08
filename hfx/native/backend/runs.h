// Which requests share a run of the net: those of one shape, or of near widths where padding costs nearly nothing, so that
// each has the answer, to the bit, that it has alone. The rules are those of python_backends/onnxruntime/ragged.py.
#pragma once
#include "job.h"

namespace hfx {

// What is done between two parts of a large job; nothing where there is no function.
struct Interlude {
    void (*function)(void *) = nullptr;
    void *argument = nullptr;
};

class Runs {
public:
    // Of `jobs`, whose order changes. Items have `item_rank` sizes: 1 of a row of tokens, 2 of several sequences.
    Runs(const Net &net, bool skips_padding, size_t item_rank, Array<Job *> &jobs, Interlude interlude);

    // Runs the net for the next jobs: those that it fails for, or that are cancelled by now, have failed, the others have
    // what it made. Null: all ran.
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
