// Divides requests into runs on a GPU. Runs are rectangles: the rows of a request, and the sequences of a row, are
// padded to the widest sequence of the run, and a request of more than a run's sequences is answered in parts.
#pragma once
#include "device_net.h"
#include "job.h"

namespace hfx {

// Some sequences of a request in a run.
struct Slice {
    Job *job = nullptr;
    size_t first = 0, count = 0;
    bool last = false;  // the request is done after this run
};

class DevicePlan {
public:
    // Takes requests, linked by `next`, in the place of those that it has had. Returns the requests for which there is
    // no memory.
    Job *take(Job *batch);
    bool empty() const { return at_ == jobs_.size(); }
    // Fills `slices`, which has room for Shapes::MOST_SEQUENCES + 1, and sets `width` to the widest sequence. A request
    // that has failed, or is cancelled, gets a last slice without sequences. Returns false if no request is left.
    bool next(Array<Slice> &slices, size_t &width);

private:
    Array<Job *> jobs_;  // by width, the widest first
    size_t at_ = 0, from_ = 0;  // the next request, and its next sequence
};

// The number of sequences of a request.
inline size_t sequences_of(const Job &job) { return job.tokens.rows * job.tokens.sequences; }

}  // namespace hfx
