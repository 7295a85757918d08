#include "model.h"

namespace hfx {
namespace {

// Reports a run of the net to each model that has rows in it, before the models' requests are released.
void report(Job **jobs, size_t count, uint64_t began, uint64_t ended) {
    for (size_t at = 0; at < count; at++) {
        size_t before = 0, rows = 0;
        while (jobs[before]->model != jobs[at]->model) before++;
        if (before < at) continue;
        for (size_t each = at; each < count; each++)
            if (jobs[each]->model == jobs[at]->model && jobs[each]->code != triton::CANCELLED) rows += jobs[each]->inputs.rows;
        if (rows) triton::done(TRITONBACKEND_ModelInstanceReportBatchStatistics(jobs[at]->instance, rows, began, began, ended, now()));
    }
}

}  // namespace

void Runner::lead() {
    for (;;) {
        const bool has_large = in_turns_;
        Job *batch = has_large ? queue.next_small() : queue.next();
        if (!batch && !has_large) return;  // another thread may lead by now
        if (batch && batch->work > queue.bound.large) begin(batch);
        else if (batch) run(batch);
        Job *large = in_turns_ && in_turns_ < TURNS ? queue.next_large() : nullptr;
        if (large) begin(large);
        if (in_turns_) run_part();
    }
}

// Takes a large request into the turns.
void Runner::begin(Job *job) {
    Large *large = make<Large>();
    if (!large) {
        queue.finish(*job);
        job->fail(triton::UNAVAILABLE);
        return job->model->finish(job);
    }
    large->job = job, large->began = now();
    large->run.open(net, item_rank);
    large->run.begin(&large->job, 1);
    large_[in_turns_++] = large;
}

// Runs a part of the large request whose turn it is, and passes the turn on.
void Runner::run_part() {
    Large *large = large_[0];
    const uint64_t began = now();
    if (is_cancelled(*large->job)) large->job->fail(triton::CANCELLED, CANCELLED);
    else if (!large->run.has_ended()) queue.computed(*large->job, large->run.next());
    large->spent += now() - began;
    for (size_t at = 1; at < in_turns_; at++) large_[at - 1] = large_[at];
    large_[in_turns_ - 1] = large;
    if (!large->job->failed() && !large->run.has_ended()) return;
    in_turns_--;
    finish(large);
}

void Runner::finish(Large *large) {
    queue.finish(*large->job);
    if (!large->job->failed()) large->run.finish(&large->job, 1);
    if (!large->job->failed()) queue.ran(0, large->job->work, large->spent);
    answer(&large->job, 1, large->began, now());
    destroy(large);
}

void Runner::run(Job *batch) {
    Array<Job *> jobs;
    for (Job *job = batch, *next; job; job = next) {
        next = job->next;
        if (!jobs.push(job) && !job->fail(triton::UNAVAILABLE)) job->model->finish(job);
    }
    Runs runs(net, skips_padding, item_rank, jobs);
    const uint64_t first = now();
    size_t count = 0, all = 0, work = 0;
    for (uint64_t began = first, ended = 0; Job **ran = runs.next(count); began = now()) {
        ended = now();
        for (size_t at = 0; at < count; at++)
            if (ran[at]->code != triton::CANCELLED) all += ran[at]->inputs.rows, work += ran[at]->work;
        answer(ran, count, began, ended);
    }
    queue.ran(all, work, now() - first);
}

// Answers jobs for which the net has run, or which have failed.
void Runner::answer(Job **jobs, size_t count, uint64_t began, uint64_t ended) {
    for (size_t at = 0; at < count; at++) {
        Job &job = *jobs[at];
        if (job.code != triton::CANCELLED) job.began = began, job.ended = ended;
        if (!job.failed() && !job.model->answer(job)) job.fail(job.reason.empty() ? triton::UNAVAILABLE : triton::INVALID_ARGUMENT);
    }
    report(jobs, count, began, ended);
    // Once the last request of a model that shares the net is released, the model may be gone.
    for (size_t at = 0; at < count; at++) jobs[at]->model->finish(jobs[at]);
}

}  // namespace hfx
