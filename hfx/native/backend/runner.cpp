#include "model.h"
#include "runs.h"

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
    while (Job *batch = queue.next()) {
        size_t large = batch->work > queue.bound.large ? batch->work : 0;
        run(batch, large);
        if (large) queue.finish(large);
    }
}

void Runner::interlude(void *runner) {
    Runner &own = *static_cast<Runner *>(runner);
    uint64_t began = now();
    if (Job *batch = own.queue.next_small()) own.run(batch, false);
    own.between_ += now() - began;
}

void Runner::run(Job *batch, bool large) {
    Array<Job *> jobs;
    for (Job *job = batch, *next; job; job = next) {
        next = job->next;
        if (!jobs.push(job) && !job->fail(triton::UNAVAILABLE)) job->model->finish(job);
    }
    Interlude between;
    if (large) between = {interlude, this}, between_ = 0;
    Runs runs(net, skips_padding, item_rank, jobs, between);
    const uint64_t first = now();
    size_t count = 0, all = 0, work = 0;
    for (uint64_t began = first, ended = 0; Job **ran = runs.next(count); began = now()) {
        ended = now();
        for (size_t at = 0; at < count; at++) {
            Job &job = *ran[at];
            if (job.code != triton::CANCELLED) job.began = began, job.ended = ended, all += job.inputs.rows, work += job.work;
            if (!job.failed() && !job.model->answer(job)) job.fail(job.reason.empty() ? triton::UNAVAILABLE : triton::INVALID_ARGUMENT);
        }
        report(ran, count, began, ended);
        // Once the last request of a model that shares the net is released, the model may be gone.
        for (size_t at = 0; at < count; at++) ran[at]->model->finish(ran[at]);
    }
    queue.ran(large ? 0 : all, work, now() - first - (large ? between_ : 0));
}

}  // namespace hfx
