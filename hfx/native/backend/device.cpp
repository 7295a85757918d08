#include "device.h"
#include <dlfcn.h>
#include <pthread.h>
#include "../held.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr const char *LIBRARY = "libcuda.so.1", *WHAT_NEXT = "mend it, or serve on the CPU (--device cpu)";
// Of cuda.h: CUresult, CUstream_flags and CUevent_flags.
constexpr int OUT_OF_MEMORY = 2;
constexpr unsigned NON_BLOCKING = 1, WITHOUT_TIMES = 2;

}  // namespace

// The driver's functions, by their names in cuda.h. An address of the GPU is a number of 64 bits there.
struct Device::Driver {
    int (*cuInit)(unsigned);
    int (*cuDeviceGet)(int *, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuDevicePrimaryCtxRelease_v2)(int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuStreamCreate)(void **, unsigned);
    int (*cuStreamDestroy_v2)(void *);
    int (*cuStreamSynchronize)(void *);
    int (*cuEventCreate)(void **, unsigned);
    int (*cuEventDestroy_v2)(void *);
    int (*cuEventRecord)(void *, void *);
    int (*cuEventSynchronize)(void *);
    int (*cuMemAlloc_v2)(void **, size_t);
    int (*cuMemFree_v2)(void *);
    int (*cuMemHostAlloc)(void **, size_t, unsigned);
    int (*cuMemFreeHost)(void *);
    int (*cuMemcpyHtoDAsync_v2)(void *, const void *, size_t, void *);
    int (*cuMemcpyDtoHAsync_v2)(void *, const void *, size_t, void *);
    int (*cuGetErrorString)(int, const char **);

    // Opens the driver once. Returns null with the reason in `error`.
    static const Driver *open(Text &error);

private:
    bool find(void *library, Text &error);
};

const Device::Driver *Device::Driver::open(Text &error) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static Driver driver;
    static bool found;
    Held held(lock);
    if (found) return &driver;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        refuse(error, "there is no driver of NVIDIA (%.200s): %s", dlerror(), WHAT_NEXT);
        return nullptr;
    }
    found = driver.find(library, error);
    return found ? &driver : nullptr;
}

bool Device::Driver::find(void *library, Text &error) {
#define HFX_FIND(name)                                                                                   \
    if (!(name = reinterpret_cast<decltype(name)>(dlsym(library, #name))))                               \
        return refuse(error, "the driver %s has no function " #name ": update it, or serve on the CPU (--device cpu)", LIBRARY)
    HFX_FIND(cuInit);
    HFX_FIND(cuDeviceGet);
    HFX_FIND(cuDevicePrimaryCtxRetain);
    HFX_FIND(cuDevicePrimaryCtxRelease_v2);
    HFX_FIND(cuCtxSetCurrent);
    HFX_FIND(cuStreamCreate);
    HFX_FIND(cuStreamDestroy_v2);
    HFX_FIND(cuStreamSynchronize);
    HFX_FIND(cuEventCreate);
    HFX_FIND(cuEventDestroy_v2);
    HFX_FIND(cuEventRecord);
    HFX_FIND(cuEventSynchronize);
    HFX_FIND(cuMemAlloc_v2);
    HFX_FIND(cuMemFree_v2);
    HFX_FIND(cuMemHostAlloc);
    HFX_FIND(cuMemFreeHost);
    HFX_FIND(cuMemcpyHtoDAsync_v2);
    HFX_FIND(cuMemcpyDtoHAsync_v2);
    HFX_FIND(cuGetErrorString);
#undef HFX_FIND
    return true;
}

Device::~Device() {
    if (!context_) return;
    driver_->cuCtxSetCurrent(context_);
    for (void *each : memory_) driver_->cuMemFree_v2(each);
    for (void *each : host_memory_) driver_->cuMemFreeHost(each);
    for (void *each : events_)
        if (each) driver_->cuEventDestroy_v2(each);
    if (stream_) driver_->cuStreamDestroy_v2(stream_);
    driver_->cuDevicePrimaryCtxRelease_v2(number_);
}

bool Device::fails(int code, Text &error) {
    if (!code) return false;
    const char *words = nullptr;
    if (driver_->cuGetErrorString(code, &words) || !words) words = "unknown";
    refuse(error, "CUDA's error %d: %.200s", code, words);
    lost_ = lost_ || code != OUT_OF_MEMORY;
    return true;
}

bool Device::open(int number, Text &error) {
    int device = 0;
    Text words;
    number_ = number;
    if (!(driver_ = Driver::open(error))) return false;
    bool failed = fails(driver_->cuInit(0), words) || fails(driver_->cuDeviceGet(&device, number), words) ||
                  fails(driver_->cuDevicePrimaryCtxRetain(&context_, device), words);
    if (failed) context_ = nullptr;
    failed = failed || fails(driver_->cuCtxSetCurrent(context_), words) || fails(driver_->cuStreamCreate(&stream_, NON_BLOCKING), words);
    for (void *&each : events_) failed = failed || fails(driver_->cuEventCreate(&each, WITHOUT_TIMES), words);
    number_ = device;
    if (failed && words.push('\0')) refuse(error, "the GPU %d can't be used (%.300s): %s", number, words.data(), WHAT_NEXT);
    return !failed;
}

bool Device::allocate(size_t bytes, void *&memory, Text &error) {
    if (!memory_.reserve(memory_.size() + 1)) return false;
    return !fails(driver_->cuMemAlloc_v2(&memory, bytes), error) && memory_.push(memory);
}

bool Device::allocate_host(size_t bytes, void *&memory, Text &error) {
    if (!host_memory_.reserve(host_memory_.size() + 1)) return false;
    return !fails(driver_->cuMemHostAlloc(&memory, bytes, 0), error) && host_memory_.push(memory);
}

bool Device::upload(void *to, const void *from, size_t bytes, Text &error) { return !fails(driver_->cuMemcpyHtoDAsync_v2(to, from, bytes, stream_), error); }

bool Device::download(void *to, const void *from, size_t bytes, Text &error) { return !fails(driver_->cuMemcpyDtoHAsync_v2(to, from, bytes, stream_), error); }

bool Device::record(size_t event, Text &error) { return !fails(driver_->cuEventRecord(events_[event], stream_), error); }

bool Device::wait(size_t event, Text &error) { return !fails(driver_->cuEventSynchronize(events_[event]), error); }

bool Device::finish(Text &error) { return !fails(driver_->cuStreamSynchronize(stream_), error); }

}  // namespace hfx
