#include "runner.h"

namespace hfx {
namespace {

size_t item_rank(const NetOptions &options) { return options.settings.nested() ? 2 : 1; }

}  // namespace

bool Runner::open(const NetOptions &options, Text &error) {
    queue_.bound = options.bound, skips_padding_ = options.skips_padding, item_rank_ = item_rank(options);
    checks_.open(options.config["name"].text());
    return net.open(options.config, options.folder, options.output, error);
}

bool Runner::answers(const NetOptions &options) const { return net.makes(options.output) && item_rank_ == item_rank(options); }

void Runner::run() {
    while (Job *batch = queue_.next()) queue_.is_large(*batch) ? run_part(batch) : run_batch(batch);
    if (!queue_.settle()) checks_.count(false);
}

// Runs the next part of a large request.
void Runner::run_part(Job *job) {
    const uint64_t began = now();
    size_t tokens = 0;
    if (!job->parts) {
        job->parts = make<Run>(), job->began = began;
        if (!job->parts) job->fail(triton::UNAVAILABLE);
        else job->parts->open(net, item_rank_), job->parts->begin(&job, 1);
    }
    if (!job->failed() && is_cancelled(*job)) job->fail(triton::CANCELLED, CANCELLED);
    if (!job->failed() && !job->parts->has_ended()) tokens = job->parts->next();
    const bool ends = job->failed() || job->parts->has_ended();
    queue_.computed(*job, ends ? job->rest : tokens);
    queue_.ran(0, tokens, now() - began);
    if (!ends) return;
    queue_.end_turns(*job);
    if (!job->failed()) job->parts->finish(&job, 1);
    destroy(job->parts);
    answer_jobs(&job, 1, job->began, now());
}

void Runner::run_batch(Job *batch) {
    list_jobs(batch, jobs_);
    Runs runs(net, skips_padding_, item_rank_, jobs_, checks_);
    const uint64_t first = now();
    size_t count = 0, rows = 0, work = 0;
    for (uint64_t began = first; Job **jobs = runs.next(count); began = now()) {
        const uint64_t ended = now();
        for (size_t at = 0; at < count; at++)
            if (jobs[at]->code != triton::CANCELLED) work += jobs[at]->work;
        rows += answer_jobs(jobs, count, began, ended);
    }
    queue_.ran(rows, work, now() - first);
}

}  // namespace hfx
