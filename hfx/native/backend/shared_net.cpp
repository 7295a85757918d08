#include "shared_net.h"
#include "../held.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *THREAD = "hfx-shared-net", *ADAPTER_FILE = "adapter.bin";
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;  // a net was started, or is gone
SharedNet *first = nullptr;

// Finds the file of a model's own weights, which is beside the graph.
bool path_of_weights(const NetOptions &options, Text &path) {
    Span file = parameter(options.config, "model_file");
    Text name;
    while (file.size && file.data[file.size - 1] != '/') file.size--;
    return append(name, file) && append(name, ADAPTER_FILE) && path_in(options.folder, {name.data(), name.size()}, path);
}

}  // namespace

SharedNet *SharedNet::acquire(Span key) {
    Held held(lock);
    for (;;) {
        SharedNet *net = first;
        while (net && !same({net->key_.data(), net->key_.size()}, key)) net = net->next_;
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

bool SharedNet::open(const NetOptions &options, int32_t &slot, Text &error) {
    Text weights;
    if (!path_of_weights(options, weights) || (starts_ && !start(options, weights.data(), error))) return false;
    if (!runner_.answers(options)) return refuse(error, "the model and the others of its %s have different tasks", SHARED_NET);
    return pool_.load(weights.data(), slot, error);
}

// Opens the net and starts the thread. From now on, other models use the net.
bool SharedNet::start(const NetOptions &options, const char *weights, Text &error) {
    size_t stride = 0;
    if (!runner_.open(options, error) || !runner_.net.use(pool_, stride, error)) return false;
    if (!stride && !count_floats(weights, stride, error)) return false;
    if (!pool_.open(stride, error) || !thread_.start(*this, THREAD, error)) return false;
    Held held(lock);
    starts_ = false;
    pthread_cond_broadcast(&changed);
    return true;
}

void SharedNet::release(int32_t slot) {
    if (slot >= 0) pool_.free(slot);
    {
        Held held(lock);
        if (--users_) return;
        SharedNet **at = &first;
        while (*at != this) at = &(*at)->next_;
        *at = next_;
        pthread_cond_broadcast(&changed);
    }
    destroy(this);
}

}  // namespace hfx
