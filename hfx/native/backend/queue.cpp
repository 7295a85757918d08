#include "queue.h"
#include "../held.h"

namespace hfx {
namespace {

// Of what waits, a leader of two takes half, at least FEW_TOKENS and at most MOST_TOKENS. A second leader begins only if
// each gets FEW_TOKENS. On a Zen 4, 48 gives 8 callers of 16 tokens 8 % more answers than one leader does, and 4 callers
// as many. 32 gives them 6 % more and 4 % fewer.
constexpr size_t FEW_TOKENS = 48, MOST_TOKENS = 512;

double mean(double before, double value) { return before > 0 ? (before + value) / 2 : value; }

}  // namespace

bool Queue::refuses(size_t work, double timeout) const {
    if (bound.requests && requests_ >= bound.requests) return true;
    if (work > bound.tokens) {
        double before = double(larges_ < TURNS && work < large_ ? work : large_);
        double seconds = rate_ > 0 ? before / rate_ : 0;
        return (timeout > 0 && seconds > timeout) || (larges_ > TURNS && bound.seconds > 0 && seconds > bound.seconds);
    }
    if (requests_ < FEW_WAITING) return false;
    // The rest of the current run, the waiting requests, and the run that includes the new request. Large requests take
    // turns with others.
    double others = work > bound.large || double(large_) < double(work_) ? double(large_) : double(work_);
    double seconds = rate_ > 0 ? 2 * run_seconds_ + (double(work_) + others) / rate_ : 0;
    if (timeout > 0 && seconds > timeout) return true;
    return (rows_ >= bound.batch || large_) && bound.seconds > 0 && seconds > bound.seconds;
}

// Adds a request to the counts (`sign` is 1), or takes it out of them (-1).
void Queue::count(size_t rows, size_t work, int sign) {
    requests_ += sign;
    if (work > bound.large) large_ += sign * work, larges_ += sign;
    else rows_ += sign * rows, work_ += sign * work;
}

bool Queue::take(size_t rows, size_t work, double timeout) {
    Held held(lock_);
    if (refuses(work, timeout)) return false;
    count(rows, work, 1);
    return true;
}

bool Queue::correct(size_t rows, size_t estimated, size_t work, double timeout) {
    Held held(lock_);
    count(rows, estimated, -1);
    if (work > bound.tokens && refuses(work, timeout)) return false;
    count(rows, work, 1);
    return true;
}

void Queue::leave_out(size_t rows, size_t work) {
    Held held(lock_);
    count(rows, work, -1);
}

bool Queue::add(Job *job) {
    Held held(lock_);
    job->next = nullptr;
    *end_ = job, end_ = &job->next;
    if (leads_) return false;
    return leads_ = true;
}

// Takes the job that `from` points at out of the queue.
Job *Queue::cut(Job **from) {
    Job *job = *from;
    if (end_ == &job->next) end_ = from;
    *from = job->next;
    job->next = nullptr;
    requests_--;
    if (!is_large(*job)) rows_ -= job->inputs.rows, work_ -= job->work;
    return job;
}

Job *Queue::next(bool stays, size_t least) {
    Held held(lock_);
    if (!in_turns_ && work_ + large_ < least) return nullptr;
    Job *batch = pick(SIZE_MAX);
    if (!batch) leads_ = stays;
    return batch;
}

Job *Queue::next_of_two(bool second, bool &alone) {
    Held held(lock_);
    const bool large = in_turns_ || (first_ && is_large(*first_));
    alone = second || (has_second && !large && (second_leads_ || can_be_shared()));
    if (!second) whole_ = !alone;
    Job *batch = second && large ? nullptr : pick(alone ? share() : SIZE_MAX);
    if (!batch) (second ? second_leads_ : leads_) = false;
    return batch;
}

bool Queue::start_second() {
    Held held(lock_);
    if (!has_second || second_leads_ || whole_ || !leads_ || in_turns_ || !first_ || is_large(*first_)) return false;
    return second_leads_ = true;
}

// How many tokens a leader of two takes of those that wait.
size_t Queue::share() const {
    const size_t half = (work_ + 1) / 2;
    return half < FEW_TOKENS ? FEW_TOKENS : half < MOST_TOKENS ? half : MOST_TOKENS;
}

// Whether enough requests wait, before the first large one, for the share of a leader and for at least half as much.
bool Queue::can_be_shared() const {
    size_t taken = 0, rest = 0, most = share();
    for (const Job *job = first_; job && !is_large(*job) && rest < taken + !taken; job = job->next)
        (!taken || (!rest && taken + job->work <= most) ? taken : rest) += job->work;
    return taken + rest >= 2 * FEW_TOKENS && taken <= 2 * rest;
}

// Returns what runs next, of at most `most` tokens or one request.
Job *Queue::pick(size_t most) {
    const bool large_is_first = in_turns_ ? !was_part_ : first_ && is_large(*first_);
    Job *batch = large_is_first ? nullptr : next_small(most);
    if (!batch) batch = next_part();
    was_part_ = batch && is_large(*batch);
    return batch;
}

// Takes a batch of small requests out of the queue: of the whole queue if large requests are in turns, otherwise of
// the requests before the first large one. It has at most `most` tokens, or one request.
Job *Queue::next_small(size_t most) {
    Job *batch = nullptr, **end = &batch;
    size_t rows = 0, work = 0;
    for (Job **at = &first_; *at;) {
        const Job &job = **at;
        bool fits = !is_large(job) && (!batch || (rows + job.inputs.rows <= bound.batch && work + job.work <= most));
        if (!fits && !in_turns_) break;
        if (!fits) {
            at = &(*at)->next;
            continue;
        }
        rows += job.inputs.rows, work += job.work;
        *end = cut(at), end = &(*end)->next;
    }
    return batch;
}

// Returns the large request whose turn it is. Another one joins the turns if there are fewer than TURNS.
Job *Queue::next_part() {
    Job **at = &first_;
    while (in_turns_ < TURNS && *at && !is_large(**at)) at = &(*at)->next;
    if (in_turns_ < TURNS && *at) turns_[in_turns_++] = cut(at);
    if (!in_turns_) return nullptr;
    Job *job = turns_[0];
    memmove(turns_, turns_ + 1, (in_turns_ - 1) * sizeof *turns_);
    return turns_[in_turns_ - 1] = job;
}

void Queue::ran(size_t rows, size_t work, uint64_t nanoseconds, bool alone) {
    double seconds = 1e-9 * double(nanoseconds);
    if (!work || seconds <= 0) return;
    Held held(lock_);
    rate_ = mean(rate_, double(alone ? 2 * work : work) / seconds);
    if (rows) run_seconds_ = mean(run_seconds_, seconds);
}

void Queue::computed(Job &job, size_t tokens) {
    Held held(lock_);
    large_ -= tokens, job.rest -= tokens;
}

void Queue::end_turns(Job &job) {
    Held held(lock_);
    size_t at = 0;
    while (turns_[at] != &job) at++;
    memmove(turns_ + at, turns_ + at + 1, (--in_turns_ - at) * sizeof *turns_);
    larges_--;
}

bool Queue::settle() {
    Held held(lock_);
    if (requests_ || first_ || in_turns_) return true;
    const bool settled = !rows_ && !work_ && !large_ && !larges_;
    rows_ = work_ = large_ = larges_ = 0;
    return settled;
}

}  // namespace hfx
