// Jobs that can be ended by a name: those of clients over HTTP, whose leaving Triton does not notice (2.51).
#pragma once
#include <pthread.h>
#include "job.h"

namespace hfx {

class NamedJobs {
public:
    ~NamedJobs() { pthread_mutex_destroy(&lock_); }

    void add(Job &job);
    void remove(Job &job);  // also of one that was not added
    // Whether there is a job of the name; its work ends at the next part.
    bool end(Span name);

private:
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    Job *first_ = nullptr;
};

}  // namespace hfx
