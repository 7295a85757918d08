#include "queue.h"
#include "../held.h"

namespace hfx {
namespace {

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
    (last_ ? last_->next : first_) = job;
    last_ = job;
    if (leads_) return false;
    return leads_ = true;
}

// Takes the job that `from` points at out of the queue.
Job *Queue::cut(Job **from) {
    Job *job = *from;
    *from = job->next;
    job->next = nullptr;
    requests_--;
    if (job->work <= bound.large) rows_ -= job->inputs.rows, work_ -= job->work;
    return job;
}

Job *Queue::next(bool stays, size_t least) {
    Held held(lock_);
    if (work_ + large_ < least) return nullptr;
    Job *batch = nullptr, **end = &batch;
    for (size_t rows = 0; first_ && (!batch || (first_->work <= bound.large && rows + first_->inputs.rows <= bound.batch)); end = &(*end)->next) {
        rows += first_->inputs.rows;
        *end = cut(&first_);
        if ((*end)->work > bound.large) break;
    }
    if (!batch) leads_ = stays;
    if (!first_) last_ = nullptr;
    return batch;
}

Job *Queue::next_small() {
    Held held(lock_);
    Job *batch = nullptr, **end = &batch, *before = nullptr;
    size_t rows = 0;
    for (Job **at = &first_; *at;) {
        Job *job = *at;
        bool fits = job->work <= bound.large && (!batch || rows + job->inputs.rows <= bound.batch);
        if (!fits) {
            before = job, at = &job->next;
            continue;
        }
        rows += job->inputs.rows;
        *end = cut(at), end = &job->next;
    }
    last_ = before;
    return batch;
}

Job *Queue::next_large() {
    Held held(lock_);
    Job *before = nullptr;
    for (Job **at = &first_; *at; before = *at, at = &before->next) {
        if ((*at)->work <= bound.large) continue;
        if (*at == last_) last_ = before;
        return cut(at);
    }
    return nullptr;
}

void Queue::ran(size_t rows, size_t work, uint64_t nanoseconds) {
    double seconds = 1e-9 * double(nanoseconds);
    if (!work || seconds <= 0) return;
    Held held(lock_);
    rate_ = mean(rate_, double(work) / seconds);
    if (rows) run_seconds_ = mean(run_seconds_, seconds);
}

void Queue::computed(Job &job, size_t tokens) {
    Held held(lock_);
    large_ -= tokens, job.rest -= tokens;
}

void Queue::finish(Job &job) {
    computed(job, job.rest);
    Held held(lock_);
    larges_--;
}

}  // namespace hfx
