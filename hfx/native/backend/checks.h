// Checks of the backend's state while it serves, counted on /metrics (hfx_state_checks_total). They find samples of what
// would mix up answers: of every 1,000 runs for several requests, one request is run again alone. An empty queue must
// have no counts left.
#pragma once
#include "net.h"
#include "triton.h"

namespace hfx {

class Checks {
public:
    static constexpr uint64_t EVERY = 1000;  // runs

    // Publishes the counters, with the label `model`, where Triton has metrics.
    void open(Span model);
    // Counts a run. Returns whether it is to be checked, and sets `job` to the number of one of its `count` jobs.
    bool is_due(size_t count, size_t &job);
    // Counts a check; one that failed is logged, too.
    void count(bool passed);

private:
    uint64_t runs_ = 0;
    TRITONSERVER_Metric *counters_[2] = {};  // of checks that failed, and of those that passed
};

// Whether two outputs of one request are the same but for rounding.
bool agree(const Values &one, const Values &other);

}  // namespace hfx
