// Which requests share a run of the net: those of one shape, or of near widths where padding costs nearly nothing, so that
// each has the answer, to the bit, that it has alone. The rules are those of python_backends/onnxruntime/ragged.py.
#pragma once
#include "job.h"

namespace hfx {

// Runs the net for all jobs from `first` on; those that it fails for have failed, the others have what it made.
void run_net(const Net &net, bool skips_padding, size_t item_rank, Job *first);

}  // namespace hfx
