// A request of Triton's while it is in the backend, from its tensors to its response.
#pragma once
#include "net.h"
#include "parameters.h"
#include "triton.h"

namespace hfx {

struct Job {
    TRITONBACKEND_Request *request = nullptr;
    TRITONBACKEND_ModelInstance *instance = nullptr;
    Job *next = nullptr;  // in a queue or a batch
    Job *next_named = nullptr;  // in NamedJobs
    Span name;             // the request's correlation id, where the front has made it
    bool ends_name = false;      // the request ends the one of its name
    bool ended_by_name = false;  // set by another thread
    Inputs inputs;        // views of Triton's buffers, or of `copies`
    Text copies[6];       // of inputs in several buffers: of as many as a task may have
    Tokens tokens;
    size_t work = 0;  // tokens that the net computes, padding included; estimated until there are any
    Values made;  // by the net
    Outputs outputs;
    uint64_t timeout = 0;  // microseconds; 0: none
    // CLOCK_MONOTONIC, nanoseconds: how long tokenizing took, and when the net ran.
    uint64_t tokenizing = 0, began = 0, ended = 0;
    TRITONSERVER_Error_Code code = 0;  // where there is no answer, with the reason
    Text reason;

    bool failed() const { return code; }
    // Always false; without a reason there is no memory.
    bool fail(TRITONSERVER_Error_Code with);
    bool fail(TRITONSERVER_Error_Code with, const char *words);
};

uint64_t now();

// Reads the request's tensors into `inputs`. False: the job has failed.
bool read_inputs(Task task, Job &job);
// Adds the request's parameters to `inputs`. False: the job has failed.
bool read_parameters(Options options, Job &job);
// Reads the name by which the front ends a request.
void read_name(Job &job);
bool is_cancelled(const Job &job);
// Sends the outputs that the request wants, or its failure; counts it, and gives the request back.
void respond(Job &job);

}  // namespace hfx
