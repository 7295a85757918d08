// Jobs that can be ended by a name: those of HTTP clients, because Triton (2.51) does not notice that a client
// disconnects.
#pragma once
#include <pthread.h>
#include "job.h"

namespace hfx {

class NamedJobs {
public:
    ~NamedJobs() { pthread_mutex_destroy(&lock_); }

    void add(Job &job);
    void remove(Job &job);  // also if it was not added
    // Ends the jobs with the name: their work stops at the next part. Returns whether there are any.
    bool end(Span name);

private:
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Job *first_ = nullptr;
};

}  // namespace hfx
