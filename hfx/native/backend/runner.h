// Runs a net for the requests of its queue, and has their models answer them.
#pragma once
#include "net.h"
#include "queue.h"
#include "runs.h"

namespace hfx {

class Runner {
public:
    Net net;
    Queue queue;
    bool skips_padding = false;
    size_t item_rank = 1;  // as in Runs

    // Runs batch after batch until nothing waits; for the thread that leads (queue.h).
    void lead();

private:
    // A large request in progress, and the nanoseconds that its parts have taken.
    struct Large {
        Job *job = nullptr;
        Run run;
        uint64_t began = 0, spent = 0;
    };

    void run(Job *batch);
    void begin(Job *job);
    void run_part();
    void finish(Large *large);
    void answer(Job **jobs, size_t count, uint64_t began, uint64_t ended);

    Large *large_[TURNS] = {};  // the first `in_turns_` of them; the first one is next
    size_t in_turns_ = 0;
};

}  // namespace hfx
