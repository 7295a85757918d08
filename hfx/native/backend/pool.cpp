#include "pool.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../held.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr size_t PAGE = 4096, CHUNK = 64 * PAGE;  // the least size of a page: some systems for aarch64 have 64 KB
constexpr char ZEROS[PAGE] = {};

char *page(char *address, size_t size = PAGE) { return reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(address) & ~(size - 1)); }

// Copies to memory that is zero, and leaves out pages of zeros, so that the system gives them no memory.
void copy(const char *from, size_t size, char *to) {
    for (size_t at = 0, part = 0; at < size; at += part) {
        part = size_t(page(to + at) + PAGE - (to + at));
        if (part > size - at) part = size - at;
        if (memcmp(from + at, ZEROS, part)) memcpy(to + at, from + at, part);
    }
}

}  // namespace

bool count_floats(const char *path, size_t &floats, Text &error) {
    struct stat status;
    if (stat(path, &status) || !S_ISREG(status.st_mode)) return refuse(error, "%.300s can't be read", path);
    size_t bytes = size_t(status.st_size);
    if (!bytes || bytes % sizeof(float)) return refuse(error, "%.300s has %zu bytes, which are no FP32 numbers", path, bytes);
    if (bytes > Pool::MOST_BYTES) return refuse(error, "%.300s has %zu bytes; %zu is the most", path, bytes, Pool::MOST_BYTES);
    floats = bytes / sizeof(float);
    return true;
}

Pool::~Pool() {
    if (data_) munmap(data_, slots_ * stride_ * sizeof(float));
    pthread_mutex_destroy(&lock_);
}

bool Pool::open(size_t stride, Text &error) {
    if (!stride || stride > MOST_BYTES / sizeof(float)) return refuse(error, "a model of the shared net can't have %zu weights of its own", stride);
    size_t bytes = stride * sizeof(float);
    // A system that does not overcommit memory may have no room for all slots.
    for (slots_ = MOST_ADDRESSES / bytes < MOST_SLOTS ? MOST_ADDRESSES / bytes : MOST_SLOTS; slots_; slots_ /= 2) {
        void *made = mmap(nullptr, slots_ * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) continue;
        madvise(made, slots_ * bytes, MADV_NOHUGEPAGE);  // a huge page would hold the pages of zeros as well
        data_ = static_cast<float *>(made), stride_ = stride;
        return true;
    }
    return refuse(error, "%s", NO_MEMORY);
}

bool Pool::load(const char *path, int32_t &slot, Text &error) {
    size_t floats = 0;
    if (!count_floats(path, floats, error)) return false;
    if (floats != stride_) return refuse(error, "%.300s has %zu numbers; the shared net takes %zu", path, floats, stride_);
    int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return refuse(error, "%.300s can't be read", path);
    bool loaded = take(slot, error) && read(file, reinterpret_cast<char *>(data_ + size_t(slot) * stride_), path, error);
    close(file);
    return loaded;
}

bool Pool::take(int32_t &slot, Text &error) {
    Held held(lock_);
    for (size_t at = 0; at < slots_; at++)
        if (!taken_[at]) {
            taken_[at] = true, slot = int32_t(at);
            if (at >= used_) used_ = at + 1;
            return true;
        }
    return refuse(error, "the shared net has no room for a model beside %zu others", slots_);
}

bool Pool::read(int file, char *to, const char *path, Text &error) {
    Text chunk;
    if (!chunk.resize(CHUNK)) return refuse(error, "%s", NO_MEMORY);
    for (size_t left = stride_ * sizeof(float), size = 0; left; left -= size, to += size) {
        size = left < CHUNK ? left : CHUNK;
        for (size_t at = 0; at < size;) {
            ssize_t got = ::read(file, chunk.data() + at, size - at);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return refuse(error, "%.300s: it isn't whole", path);
            at += size_t(got);
        }
        copy(chunk.data(), size, to);
    }
    return true;
}

void Pool::free(int32_t slot) {
    char *from = reinterpret_cast<char *>(data_ + size_t(slot) * stride_), *end = from + stride_ * sizeof(float);
    const size_t size = size_t(getpagesize());
    char *first = page(from + size - 1, size), *last = page(end, size);  // the whole pages; the others have numbers of other slots
    if (first < last && !madvise(first, size_t(last - first), MADV_DONTNEED)) clear(from, first), clear(last, end);
    else clear(from, end);
    Held held(lock_);
    taken_[slot] = false;
    while (used_ && !taken_[used_ - 1]) used_--;
}

void Pool::clear(char *from, char *end) {
    for (; from < end; from += sizeof(float)) {
        uint32_t bits;
        memcpy(&bits, from, sizeof bits);
        if (bits) memset(from, 0, sizeof bits);  // writing would give memory to a page of zeros
    }
}

size_t Pool::used() const {
    Held held(lock_);
    return used_;
}

}  // namespace hfx
