// The thread of a net that does not run on the threads of Triton.
#pragma once
#include <pthread.h>
#include <semaphore.h>
#include "net_host.h"

namespace hfx {

class HostThread {
public:
    // Waits until the thread has ended its current run, and ends it.
    ~HostThread();

    // Starts a thread that calls `host.begin`, and then `host.run` each time that it is woken. Returns after `begin`, or
    // false with the reason in `error`. A `name` has at most 15 characters.
    [[nodiscard]] bool start(NetHost &host, const char *name, Text &error);
    void wake() { sem_post(&waiting_); }

private:
    static void *serve(void *thread);

    NetHost *host_ = nullptr;
    bool runs_ = false, ends_ = false;
    pthread_t thread_ = {};
    sem_t begun_ = {}, waiting_ = {};
};

}  // namespace hfx
