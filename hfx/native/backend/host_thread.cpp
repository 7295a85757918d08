#include "host_thread.h"
#include <errno.h>
#include "refusals.h"

namespace hfx {
namespace {

void wait_for(sem_t &semaphore) {
    while (sem_wait(&semaphore) && errno == EINTR) {}
}

}  // namespace

bool HostThread::start(NetHost &host, const char *name, Text &error) {
    host_ = &host;
    runs_ = !sem_init(&begun_, 0, 0) && !sem_init(&waiting_, 0, 0) && !pthread_create(&thread_, nullptr, serve, this);
    if (!runs_) return refuse(error, "the system has no thread for the net");
    pthread_setname_np(thread_, name);
    wait_for(begun_);
    return true;
}

HostThread::~HostThread() {
    if (!runs_) return;
    __atomic_store_n(&ends_, true, __ATOMIC_RELEASE);
    wake();
    pthread_join(thread_, nullptr);
    sem_destroy(&begun_), sem_destroy(&waiting_);
}

void *HostThread::serve(void *thread) {
    HostThread &own = *static_cast<HostThread *>(thread);
    own.host_->begin();
    sem_post(&own.begun_);
    for (;;) {
        wait_for(own.waiting_);
        if (__atomic_load_n(&own.ends_, __ATOMIC_ACQUIRE)) return nullptr;
        own.host_->run();
    }
}

}  // namespace hfx
