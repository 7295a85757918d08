#include "device_plan.h"

namespace hfx {
namespace {

constexpr size_t NEAR = 2;  // sequences share a run if padding makes none of them longer than this factor

int widest_first(const void *one, const void *other) {
    size_t left = (*static_cast<Job *const *>(one))->tokens.width, right = (*static_cast<Job *const *>(other))->tokens.width;
    return left > right ? -1 : left < right;
}

}  // namespace

void DevicePlan::take(Job *batch) {
    list_jobs(batch, jobs_);
    at_ = 0;
    if (!jobs_.empty()) qsort(jobs_.data(), jobs_.size(), sizeof(Job *), widest_first);
}

bool DevicePlan::next(Array<Slice> &slices) {
    slices.clear();
    if (at_ == jobs_.size()) return false;
    const size_t width = jobs_[at_]->tokens.width, most = Shapes::most(width);
    for (size_t count = 0; at_ < jobs_.size() && count < most && slices.size() < Shapes::MOST_SEQUENCES;) {
        Job &job = *jobs_[at_];
        if (!job.failed() && is_cancelled(job)) job.fail(triton::CANCELLED, CANCELLED);
        size_t all = job.tokens.rows * job.tokens.sequences, rest = all - job.begun, size = job.failed() ? 0 : rest < most - count ? rest : most - count;
        bool near = job.tokens.width * NEAR >= width || (count + size) * width <= Shapes::FEW_TOKENS;
        bool whole = size == rest || all > most || !count;
        if (size && (!near || !whole)) break;
        bool last = !size || size == rest;
        if (!slices.push({&job, job.begun, size, last})) break;  // there is room: see the header
        count += size, job.begun += size;
        at_ += last;
    }
    return true;
}

}  // namespace hfx
