// The queue of one model: what waits for its net, and which requests are taken.
//
// The thread that brings a request when nothing runs leads: it runs the net for all that waits, batch after batch, until
// nothing does. Threads of other instances tokenize requests meanwhile, and add them, or refuse them at once.
#pragma once
#include <pthread.h>
#include "job.h"

namespace hfx {

// How much may wait: requests, and the seconds until a new one is answered; 0 for any. `batch` rows, a full batch, may
// wait whatever the seconds are: callers that wait for their answers make one.
struct Bound {
    size_t requests = 1024;
    double seconds = 3.0;
    size_t batch = 64;
};

class Queue {
public:
    ~Queue() { pthread_mutex_destroy(&lock_); }

    Bound bound;

    // Whether a request of `rows` rows is taken, whose caller waits for `timeout` seconds (0: any); it is to be added, or
    // left out.
    bool take(size_t rows, double timeout);
    void leave_out(size_t rows);
    // Whether the caller leads now: it must call `next` until that returns null.
    bool add(Job *job);
    // The next batch, of `bound.batch` rows unless one request has more; null where nothing waits.
    Job *next();
    // What a batch took.
    void ran(size_t rows, uint64_t nanoseconds);

private:
    bool refuses(double timeout) const;

    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Job *first_ = nullptr, *last_ = nullptr;
    size_t requests_ = 0, rows_ = 0;  // taken, and not in a batch yet
    bool leads_ = false;
    double rate_ = 0, run_seconds_ = 0;  // rows a second, and of a run; 0: not known yet
};

}  // namespace hfx
