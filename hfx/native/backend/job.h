// A Triton request while it is in the backend, from its tensors to its response.
#pragma once
#include "net.h"
#include "parameters.h"
#include "triton.h"

namespace hfx {

class Run;
struct Job;

constexpr const char *CANCELLED = "The request was cancelled.";

// What ends a job: the model that it was sent to.
class Answerer {
public:
    // Adds the outputs to a job for which the net has run. Returns false with the reason in the job.
    virtual bool answer(Job &job) const = 0;
    // Sends the job's answer and ends the job. If its net is shared, the model may be gone afterwards.
    virtual void finish(Job *job) = 0;

protected:
    ~Answerer() = default;
};

struct Job {
    TRITONBACKEND_Request *request = nullptr;
    TRITONBACKEND_ModelInstance *instance = nullptr;
    Answerer *model = nullptr;
    int32_t slot = -1;  // of the model's weights in the pool; -1: the model has a net of its own
    Job *next = nullptr;  // in a queue or a batch
    Job *next_named = nullptr;  // in NamedJobs
    Span name;             // the request's correlation id, if the front made it
    bool ends_name = false;      // this request ends the other request of its name
    bool ended_by_name = false;  // set by another thread
    Inputs inputs;        // views of Triton's buffers, or of `copies`
    Text copies[6];       // of inputs in several buffers; a task has at most so many inputs
    Tokens tokens;
    size_t work = 0;  // tokens that the net computes, padding included; 0 before tokenizing
    size_t rest = 0;  // of them, those that are not computed yet, if the request is large
    Run *parts = nullptr;  // of a large request on the CPU, from its first part on
    size_t begun = 0;      // on a GPU: how many sequences are in a run already
    Values made;  // the net's output
    Outputs outputs;
    uint64_t timeout = 0;  // microseconds; 0: none
    // In nanoseconds of CLOCK_MONOTONIC: how long tokenizing took, and when the net began and ended.
    uint64_t tokenizing = 0, began = 0, ended = 0;
    TRITONSERVER_Error_Code code = 0;  // not 0 if the request failed; `reason` says why
    Text reason;

    bool failed() const { return code; }
    // Always return false. An empty reason means that there is no memory.
    bool fail(TRITONSERVER_Error_Code with);
    bool fail(TRITONSERVER_Error_Code with, const char *words);
    bool fail_run(const Text &error);  // the net could not run
};

uint64_t now();

// Reads the request's tensors into `inputs`. Returns false if the job has failed.
bool read_inputs(Task task, Job &job);
// Adds the request's parameters to `inputs`. Returns false if the job has failed.
bool read_parameters(Options options, Job &job);
// Reads the name by which the front ends a request.
void read_name(Job &job);
bool is_cancelled(const Job &job);
// Sends the outputs that the request wants, or its failure; reports its statistics, and releases the request.
void respond(Job &job);

// Sets `jobs` to the jobs of a batch. Jobs for which there is no memory fail, and end.
void list_jobs(Job *batch, Array<Job *> &jobs);
// Answers and ends jobs for which the net has run, or which have failed. Reports the run to Triton, and returns the
// number of rows that are not cancelled.
size_t answer_jobs(Job **jobs, size_t count, uint64_t began, uint64_t ended);

}  // namespace hfx
