/* CUDA's driver for the backend's tests, by the names of cuda.h: the GPU's memory is the machine's, and all work is done
   at once. STUB_CUDA_FAILS="NAME CODE AFTER" has the function NAME return CODE after AFTER calls. Then every call of any
   function returns it, as for a GPU that is lost, unless CODE is that of missing memory. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, GPUS = 1 };

static int context, calls, lost;

static int failure(const char *name) {
    char failing[64] = "";
    int code = 0, after = 0;
    const char *variable = getenv("STUB_CUDA_FAILS");
    if (__atomic_load_n(&lost, __ATOMIC_RELAXED)) return lost;
    if (!variable || sscanf(variable, "%63s %d %d", failing, &code, &after) < 2 || strcmp(name, failing)) return 0;
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) < after) return 0;
    if (code != OUT_OF_MEMORY) __atomic_store_n(&lost, code, __ATOMIC_RELAXED);
    return code;
}

static int allocate(void **memory, size_t size, int code) {
    *memory = code ? 0 : malloc(size);
    return code;
}

static int copy(void *target, const void *source, size_t size, void *stream, int code) {
    if (!stream) return INVALID_VALUE;
    if (!code) memcpy(target, source, size);
    return code;
}

static int release(void *memory) {
    free(memory);
    return 0;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : failure(__func__); }

int cuDeviceGet(int *device, int number) {
    *device = number;
    return number < GPUS ? failure(__func__) : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **found, int device) {
    *found = &context;
    return device < GPUS ? failure(__func__) : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return device < GPUS ? 0 : INVALID_DEVICE; }
int cuCtxSetCurrent(void *wanted) { return wanted == &context ? failure(__func__) : INVALID_VALUE; }
int cuStreamCreate(void **stream, unsigned flags) { return allocate(stream, 1 + flags, failure(__func__)); }
int cuStreamDestroy_v2(void *stream) { return release(stream); }
int cuStreamSynchronize(void *stream) { return stream ? failure(__func__) : INVALID_VALUE; }
int cuEventCreate(void **event, unsigned flags) { return allocate(event, 1 + flags, failure(__func__)); }
int cuEventDestroy_v2(void *event) { return release(event); }
int cuEventRecord(void *event, void *stream) { return event && stream ? failure(__func__) : INVALID_VALUE; }
int cuEventSynchronize(void *event) { return event ? failure(__func__) : INVALID_VALUE; }
int cuMemAlloc_v2(void **memory, size_t size) { return allocate(memory, size, failure(__func__)); }
int cuMemFree_v2(void *memory) { return release(memory); }
int cuMemHostAlloc(void **memory, size_t size, unsigned flags) { return flags ? INVALID_VALUE : allocate(memory, size, failure(__func__)); }
int cuMemFreeHost(void *memory) { return release(memory); }

int cuMemcpyHtoDAsync_v2(void *target, const void *source, size_t size, void *stream) {
    return copy(target, source, size, stream, failure(__func__));
}

int cuMemcpyDtoHAsync_v2(void *target, const void *source, size_t size, void *stream) {
    return copy(target, source, size, stream, failure(__func__));
}

int cuGetErrorString(int code, const char **words) {
    *words = code == OUT_OF_MEMORY ? "out of memory" : code == INVALID_DEVICE ? "invalid device ordinal" : "unspecified launch failure";
    return 0;
}
