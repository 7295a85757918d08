// The queue of one net: it holds the requests for the net, and decides which requests are accepted.
//
// A thread that adds a request while nothing runs becomes the leader: it runs the net for all waiting requests, batch
// after batch, until none is left. Meanwhile, threads of other instances tokenize requests and add them, or refuse them
// at once.
//
// A large request is run in parts; between two parts, the leader runs a batch of small requests. The parts of the first
// TURNS large requests are run in turns, and the others wait: a short one is not delayed by the whole of a long one, and
// none takes more than TURNS times as long as alone once it has begun. This is the rule for CPUs and GPUs. How many
// tokens a part has is decided in runs.cpp and device_plan.cpp.
//
// A net of two threads may have a second leader, which a thread of its host is. If enough small requests wait, each of
// the two leaders runs a share of them in one thread. This is faster than batches in both threads, which wait for each
// other after each operator, and for whatever else has one of the processor's cores meanwhile.
#pragma once
#include <pthread.h>
#include "job.h"
#include "refusals.h"

namespace hfx {

// How much may wait: the number of requests, and the seconds until a new request is answered; 0 is no limit. `batch`
// rows, a full batch, may wait whatever the seconds are, because callers that wait for their answers make up such a
// batch. A request of more than `tokens` tokens, a full batch of the longest texts, is accepted if no large request waits
// for its turn, or if what is left of the large requests takes no longer than the seconds. A request of more than `large`
// tokens is run in parts.
struct Bound {
    size_t requests = 1024;
    double seconds = 3.0;
    size_t batch = 64, tokens = SIZE_MAX, large = LARGE;
};

class Queue {
public:
    ~Queue() { pthread_mutex_destroy(&lock_); }

    Bound bound;
    bool has_second = false;  // there may be a second leader

    // Whether a request of `rows` rows and `work` tokens is accepted, if its caller waits for `timeout` seconds (0: for
    // any time). An accepted request must then be added, or left out.
    bool take(size_t rows, size_t work, double timeout);
    // Decides again when the number of tokens is known. A request that is not accepted any more is left out.
    bool correct(size_t rows, size_t estimated, size_t work, double timeout);
    void leave_out(size_t rows, size_t work);
    // Adds a job. Returns whether the caller leads now: then it must call `next` until that returns null.
    bool add(Job *job);
    // Returns what runs next: a batch of small requests, linked by `next`, of at most `bound.batch` rows, or with one
    // request that has more; or the large request whose next part runs. Returns null if nothing waits, or fewer than
    // `least` tokens; then the caller leads no more, unless it `stays`.
    Job *next(bool stays = false, size_t least = 0);
    // Does the same for one of two leaders, the `second` or not, which runs the batch in its own thread if `alone`. The
    // second leader runs no large requests.
    Job *next_of_two(bool second, bool &alone);
    // Lets a second leader begin if requests wait which the first one leaves to it. Returns whether it begins; then the
    // caller must wake it.
    bool start_second();
    bool is_large(const Job &job) const { return job.work > bound.large; }
    // Records the time of a batch of small requests with `rows` rows, or of a large request with 0. What ran `alone` has
    // had half of the processor.
    void ran(size_t rows, size_t work, uint64_t nanoseconds, bool alone = false);
    // Records that `tokens` tokens of a large request have been computed, or won't be.
    void computed(Job &job, size_t tokens);
    // Takes a large request out of the turns, because its last part runs.
    void end_turns(Job &job);
    // Sets the counts of a queue without requests to 0. Returns whether they were, as they should be.
    bool settle();

private:
    bool refuses(size_t work, double timeout) const;
    void count(size_t rows, size_t work, int sign);
    Job *cut(Job **from);
    Job *pick(size_t most);
    Job *next_small(size_t most);
    Job *next_part();
    size_t share() const;
    bool can_be_shared() const;

    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Job *first_ = nullptr, **end_ = &first_;
    Job *turns_[TURNS] = {};  // the large requests in turns: the first `in_turns_`, of which the first one is next
    size_t in_turns_ = 0;
    bool was_part_ = false;   // `next` returned a large request the last time
    size_t requests_ = 0, rows_ = 0, work_ = 0;  // accepted, and not in a batch yet; rows and tokens of small requests
    size_t large_ = 0, larges_ = 0;              // tokens of the large requests that are not computed yet; the requests
    bool leads_ = false;
    bool second_leads_ = false, whole_ = false;  // `whole_`: the first leader uses both threads
    double rate_ = 0, run_seconds_ = 0;  // tokens a second, and seconds of a run of small requests; 0: not known yet
};

}  // namespace hfx
