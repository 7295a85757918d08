#include "named.h"
#include "../held.h"

namespace hfx {

void NamedJobs::add(Job &job) {
    Held held(lock_);
    job.next_named = first_, first_ = &job;
}

void NamedJobs::remove(Job &job) {
    Held held(lock_);
    for (Job **at = &first_; *at; at = &(*at)->next_named)
        if (*at == &job) {
            *at = job.next_named;
            return;
        }
}

bool NamedJobs::end(Span name) {
    Held held(lock_);
    bool found = false;
    for (Job *job = first_; job; job = job->next_named)
        if (same(job->name, name)) __atomic_store_n(&job->ended_by_name, true, __ATOMIC_RELAXED), found = true;
    return found;
}

}  // namespace hfx
