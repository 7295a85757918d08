#include "runner.h"
#include "../alone.h"

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

void Runner::run(HostThread *second) {
    bool alone = false;
    while (Job *batch = queue_.next_of_two(false, alone)) {
        if (queue_.start_second()) second->wake();
        queue_.is_large(*batch) ? run_part(batch) : run_batch(batch, jobs_, alone);
    }
    if (!queue_.settle()) checks_.count(false);
}

void Runner::run_second() {
    bool alone = true;
    while (Job *batch = queue_.next_of_two(true, alone)) run_batch(batch, jobs_of_second_, alone);
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

void Runner::run_batch(Job *batch, Array<Job *> &all, bool alone) {
    list_jobs(batch, all);
    Runs runs(net, skips_padding_, item_rank_, all, checks_);
    runs_alone = alone;
    const uint64_t first = now();
    size_t count = 0, rows = 0, work = 0;
    for (uint64_t began = first; Job **jobs = runs.next(count); began = now()) {
        const uint64_t ended = now();
        for (size_t at = 0; at < count; at++)
            if (jobs[at]->code != triton::CANCELLED) work += jobs[at]->work;
        rows += answer_jobs(jobs, count, began, ended);
    }
    runs_alone = false;
    queue_.ran(rows, work, now() - first, alone);
}

bool OwnNet::open(const NetOptions &options, int32_t &, Text &error) {
    constexpr const char *NAME = "hfx-second-run";
    long threads = 0;
    if (!whole_number(options.config, "intra_op_thread_count", 0, threads, error) || !runner_.open(options, error)) return false;
    // Other runtimes' operators would use the session's threads anyway.
    queue.has_second = options.skips_padding && threads == 2;
    return !queue.has_second || second_.start(*this, NAME, error);
}

}  // namespace hfx
