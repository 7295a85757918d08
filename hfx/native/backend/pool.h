// The weights of the models that share a net: the tensor adapters, [slots, stride], in which each model has a slot.
//
// A slot is at a fixed address, so that a model is loaded or unloaded while the net runs for other models. Only memory
// that holds numbers other than zero is used.
#pragma once
#include <pthread.h>
#include "../memory.h"

namespace hfx {

class Pool {
public:
    static constexpr size_t MOST_SLOTS = 1024;
    static constexpr size_t MOST_BYTES = size_t(1) << 30, MOST_ADDRESSES = size_t(64) << 30;  // of a slot, and of all

    ~Pool();

    // Makes room for models with `stride` numbers each. Returns false with the reason in `error`.
    [[nodiscard]] bool open(size_t stride, Text &error);
    // Takes a free slot, and reads the file `path` into it. Returns false with the reason in `error`; a slot that was
    // taken must be freed all the same.
    [[nodiscard]] bool load(const char *path, int32_t &slot, Text &error);
    // Frees a slot, which no run of the net reads any more, and returns its memory to the system.
    void free(int32_t slot);

    float *data() const { return data_; }
    size_t stride() const { return stride_; }
    size_t used() const;  // the number of slots up to the last one in use

private:
    bool take(int32_t &slot, Text &error);
    bool read(int file, char *to, const char *path, Text &error);
    void clear(char *from, char *end);

    mutable pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    float *data_ = nullptr;
    size_t stride_ = 0, slots_ = 0, used_ = 0;
    bool taken_[MOST_SLOTS] = {};
};

// Sets `floats` to the number of floats in the file `path`. Returns false, with the reason in `error`, if the file can't
// be the weights of a model.
[[nodiscard]] bool count_floats(const char *path, size_t &floats, Text &error);

}  // namespace hfx
