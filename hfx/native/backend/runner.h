// Runs a net for the requests of its queue, and has their models answer them.
#pragma once
#include "net.h"
#include "queue.h"

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
    void run(Job *batch, bool large);
    static void interlude(void *runner);

    uint64_t between_ = 0;  // nanoseconds that small requests took between the parts of a large one
};

}  // namespace hfx
