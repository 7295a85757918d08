#include "shared_net.h"
#include <errno.h>
#include "../held.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *THREAD = "hfx-shared-net";  // at most 15 characters
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;  // a net was started, or is gone
SharedNet *first = nullptr;

}  // namespace

SharedNet *SharedNet::acquire(Span key, bool &opens) {
    Held held(lock);
    for (;;) {
        SharedNet *net = first;
        while (net && !same({net->key_.data(), net->key_.size()}, key)) net = net->next_;
        opens = !net;
        if (net && net->starts_) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        if (net) return net->users_++, net;
        net = make<SharedNet>();
        if (!net || !append(net->key_, key)) return destroy(net), nullptr;
        net->next_ = first, first = net;
        return net;
    }
}

void SharedNet::release(SharedNet *net) {
    {
        Held held(lock);
        if (--net->users_) return;
        SharedNet **at = &first;
        while (*at != net) at = &(*at)->next_;
        *at = net->next_;
        pthread_cond_broadcast(&changed);
    }
    destroy(net);
}

bool SharedNet::start(Text &error) {
    if (sem_init(&waiting_, 0, 0) || pthread_create(&thread_, nullptr, serve, this)) return refuse(error, "the system has no thread for the shared net");
    has_thread_ = true;
    pthread_setname_np(thread_, THREAD);
    Held held(lock);
    starts_ = false;
    pthread_cond_broadcast(&changed);
    return true;
}

SharedNet::~SharedNet() {
    if (!has_thread_) return;
    __atomic_store_n(&ends_, true, __ATOMIC_RELEASE);
    wake();
    pthread_join(thread_, nullptr);
    sem_destroy(&waiting_);
}

void *SharedNet::serve(void *net) {
    SharedNet &own = *static_cast<SharedNet *>(net);
    for (;;) {
        while (sem_wait(&own.waiting_) && errno == EINTR) {}
        if (__atomic_load_n(&own.ends_, __ATOMIC_ACQUIRE)) return nullptr;
        own.runner.lead();
    }
}

}  // namespace hfx
