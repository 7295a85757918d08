// A lock that is held until the end of a scope.
#pragma once
#include <pthread.h>

namespace hfx {

class Held {
public:
    explicit Held(pthread_mutex_t &lock) : lock_(lock) { pthread_mutex_lock(&lock_); }
    ~Held() { pthread_mutex_unlock(&lock_); }

private:
    pthread_mutex_t &lock_;
};

}  // namespace hfx
