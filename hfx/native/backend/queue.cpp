#include "queue.h"
#include "../held.h"

namespace hfx {
namespace {

constexpr size_t FEW_WAITING = 16;  // requests, of which none is refused for the seconds that they take

double mean(double before, double value) { return before > 0 ? (before + value) / 2 : value; }

}  // namespace

bool Queue::refuses(double timeout) const {
    if (bound.requests && requests_ >= bound.requests) return true;
    if (requests_ < FEW_WAITING) return false;
    // The rest of a run, those that wait, and the run that has the new request in it.
    double seconds = rate_ > 0 ? 2 * run_seconds_ + double(rows_) / rate_ : 0;
    if (timeout > 0 && seconds > timeout) return true;
    return rows_ >= bound.batch && bound.seconds > 0 && seconds > bound.seconds;
}

bool Queue::take(size_t rows, double timeout) {
    Held held(lock_);
    if (refuses(timeout)) return false;
    requests_++, rows_ += rows;
    return true;
}

void Queue::leave_out(size_t rows) {
    Held held(lock_);
    requests_--, rows_ -= rows;
}

bool Queue::add(Job *job) {
    Held held(lock_);
    job->next = nullptr;
    (last_ ? last_->next : first_) = job;
    last_ = job;
    if (leads_) return false;
    return leads_ = true;
}

Job *Queue::next() {
    Held held(lock_);
    Job *batch = first_, *end = nullptr;
    for (size_t rows = 0; first_ && (!end || rows + first_->inputs.rows <= bound.batch); first_ = first_->next) {
        end = first_;
        rows += end->inputs.rows;
        requests_--, rows_ -= end->inputs.rows;
    }
    if (end) end->next = nullptr;
    else leads_ = false;
    if (!first_) last_ = nullptr;
    return batch;
}

void Queue::ran(size_t rows, uint64_t nanoseconds) {
    double seconds = 1e-9 * double(nanoseconds);
    if (!rows || seconds <= 0) return;
    Held held(lock_);
    rate_ = mean(rate_, double(rows) / seconds);
    run_seconds_ = mean(run_seconds_, seconds);
}

}  // namespace hfx
