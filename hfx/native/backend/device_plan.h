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
    // Must be called first. Returns false if there is no memory.
    [[nodiscard]] bool open() { return jobs_.reserve(1); }
    // Takes the requests of a batch in the place of those that it has had. There is always memory for one request.
    void take(Job *batch);
    // Fills `slices`, which has room for Shapes::MOST_SEQUENCES + 1. A request that has failed, or is cancelled, gets a
    // last slice without sequences. Returns false if no request is left.
    bool next(Array<Slice> &slices);

private:
    Array<Job *> jobs_;  // by width, the widest first
    size_t at_ = 0;      // the next request
};

}  // namespace hfx
