// The queue of one model: what waits for its net, and which requests are taken.
//
// The thread that brings a request when nothing runs leads: it runs the net for all that waits, batch after batch, until
// nothing does. Threads of other instances tokenize requests meanwhile, and add them, or refuse them at once. A large
// request is a batch by itself, and is run in parts: between two parts the leader runs a batch of small ones.
#pragma once
#include <pthread.h>
#include "job.h"

namespace hfx {

// How much may wait: requests, and the seconds until a new one is answered; 0 for any. `batch` rows, a full batch, may
// wait whatever the seconds are: callers that wait for their answers make one. A request of more than `tokens`, a full batch
// of the longest texts, is taken where the large ones before it take no longer than the seconds.
struct Bound {
    size_t requests = 1024;
    double seconds = 3.0;
    size_t batch = 64, tokens = SIZE_MAX;
};

constexpr size_t LARGE = 4096;  // tokens of a request above which it is large

class Queue {
public:
    ~Queue() { pthread_mutex_destroy(&lock_); }

    Bound bound;

    // Whether a request of `rows` rows and `work` tokens is taken, whose caller waits for `timeout` seconds (0: any); it is
    // to be added, or left out.
    bool take(size_t rows, size_t work, double timeout);
    // The same again once its tokens are known: where it is not taken any more, it is left out.
    bool correct(size_t rows, size_t estimated, size_t work, double timeout);
    void leave_out(size_t rows, size_t work);
    // Whether the caller leads now: it must call `next` until that returns null.
    bool add(Job *job);
    // The next batch, of `bound.batch` rows unless one request has more, or one large request; null where nothing waits.
    Job *next();
    // A batch of small requests, wherever they are in the queue; null where none waits.
    Job *next_small();
    // What a batch of small requests took, of `rows` rows, or a large one, of 0.
    void ran(size_t rows, size_t work, uint64_t nanoseconds);
    // A large request is answered: others don't wait for it any more.
    void finish(size_t work);

private:
    bool refuses(size_t work, double timeout) const;
    void count(size_t rows, size_t work, int sign);
    Job *cut(Job **from);

    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Job *first_ = nullptr, *last_ = nullptr;
    size_t requests_ = 0, rows_ = 0, work_ = 0;  // taken, and not in a batch yet; rows and tokens of small ones
    size_t large_ = 0;                           // tokens of the large ones that are not answered yet
    bool leads_ = false;
    double rate_ = 0, run_seconds_ = 0;  // tokens a second, and of a run of small ones; 0: not known yet
};

}  // namespace hfx
