#include "device_plan.h"

namespace hfx {
namespace {

constexpr size_t NEAR = 2;  // sequences share a run if padding makes none of them longer than this factor

int widest_first(const void *one, const void *other) {
    size_t left = (*static_cast<Job *const *>(one))->tokens.width, right = (*static_cast<Job *const *>(other))->tokens.width;
    return left > right ? -1 : left < right;
}

}  // namespace

Job *DevicePlan::take(Job *batch) {
    Job *without_memory = nullptr;
    jobs_.clear(), at_ = from_ = 0;
    for (Job *job = batch, *next; job; job = next) {
        next = job->next;
        if (!jobs_.push(job)) job->next = without_memory, without_memory = job;
    }
    if (!jobs_.empty()) qsort(jobs_.data(), jobs_.size(), sizeof(Job *), widest_first);
    return without_memory;
}

bool DevicePlan::next(Array<Slice> &slices, size_t &width) {
    slices.clear();
    if (empty()) return false;
    width = jobs_[at_]->tokens.width;
    const size_t most = Shapes::most(width);
    for (size_t count = 0; at_ < jobs_.size() && count < most && slices.size() < Shapes::MOST_SEQUENCES;) {
        Job &job = *jobs_[at_];
        if (!job.failed() && is_cancelled(job)) job.fail(triton::CANCELLED, CANCELLED);
        size_t all = sequences_of(job), rest = all - from_, size = job.failed() ? 0 : rest < most - count ? rest : most - count;
        bool near = job.tokens.width * NEAR >= width || (count + size) * width <= Shapes::FEW_TOKENS;
        bool whole = size == rest || all > most || !count;
        if (size && (!near || !whole)) break;
        bool last = !size || size == rest;
        if (!slices.push({&job, from_, size, last})) break;  // there is room: see the header
        count += size;
        from_ = last ? 0 : from_ + size;
        at_ += last;
    }
    return true;
}

}  // namespace hfx
