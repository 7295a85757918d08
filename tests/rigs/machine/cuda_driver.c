/* CUDA's driver for tests, with the CPU's memory: its calls, by the names and structures of cuda.h.

   Asynchronous copies, and the calls of rig_enqueue, are queued. They are carried out when the stream is synchronized,
   or by rig_flush, which tests call before anything that can't be queued. rig_fail lets a function fail from now on. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct side {
    size_t x_in_bytes, y, z, lod;
    unsigned memory_type;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
};

struct copy {
    struct side source, target;
    size_t width, height, depth;
};

#ifndef POISON
#define POISON 0xFF /* makes floats that are not numbers */
#endif

enum { HOST = 1, DEVICE = 2, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, QUEUED = 4096 };

static int context, stream;

/* Failures */

static char failing[64];
static int failure;

void rig_fail(const char *name, int code) {
    strncpy(failing, name, sizeof failing - 1);
    failure = code;
}

static int fails(const char *name) { return strcmp(name, failing) ? 0 : failure; }

#define FAIL_AS_TOLD                    \
    do {                                \
        int told = fails(__func__);     \
        if (told) return told;          \
    } while (0)

/* The device */

int cuInit(unsigned flags) {
    FAIL_AS_TOLD;
    return flags ? INVALID_VALUE : 0;
}

int cuDeviceGet(int *device, int number) {
    FAIL_AS_TOLD;
    *device = number;
    return number ? INVALID_DEVICE : 0;
}

int cuDevicePrimaryCtxRetain(void **found, int device) {
    FAIL_AS_TOLD;
    *found = &context;
    return device ? INVALID_DEVICE : 0;
}

int cuCtxSetCurrent(void *wanted) {
    FAIL_AS_TOLD;
    return wanted == &context ? 0 : INVALID_VALUE;
}

/* Memory. What is not written yet is NaN in every type of floats. */

static long allocated;

void rig_flush(void);

long rig_allocated(void) { return allocated; }

static int allocate(void *found, size_t size) {
    size = (size + 255) / 256 * 256;
    void *memory = aligned_alloc(256, size);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, POISON, size);
    *(void **)found = memory;
    __atomic_add_fetch(&allocated, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* As CUDA does, waits for the work that may use the memory. */
static int release(void *memory) {
    rig_flush();
    free(memory);
    __atomic_sub_fetch(&allocated, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int cuMemAlloc_v2(uint64_t *found, size_t size) {
    FAIL_AS_TOLD;
    return allocate(found, size);
}

int cuMemFree_v2(uint64_t memory) { return release((void *)(uintptr_t)memory); }

int cuMemHostAlloc(void **found, size_t size, unsigned flags) {
    FAIL_AS_TOLD;
    return flags ? INVALID_VALUE : allocate(found, size);
}

int cuMemFreeHost(void *memory) { return release(memory); }

/* Copies */

static struct {
    struct copy copy;
    void (*call)(void); /* instead of a copy */
} queue[QUEUED];
static size_t queued;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *line(const struct side *of, size_t height, size_t depth) {
    char *begin = of->memory_type == HOST ? (char *)of->host : (char *)(uintptr_t)of->device;
    return begin + (of->z + depth) * of->height * of->pitch + (of->y + height) * of->pitch + of->x_in_bytes;
}

static void carry_out(const struct copy *copy) {
    for (size_t depth = 0; depth < copy->depth; depth++)
        for (size_t height = 0; height < copy->height; height++)
            memcpy(line(&copy->target, height, depth), line(&copy->source, height, depth), copy->width);
}

static void flush(void) {
    for (size_t at = 0; at < queued; at++) {
        if (queue[at].call)
            queue[at].call();
        else
            carry_out(&queue[at].copy);
    }
    queued = 0;
}

void rig_flush(void) {
    pthread_mutex_lock(&lock);
    flush();
    pthread_mutex_unlock(&lock);
}

static int enqueue(const struct copy *copy, const void *in_stream) {
    if (in_stream != &stream) return INVALID_VALUE;
    if (copy->width > copy->source.pitch || copy->width > copy->target.pitch) return INVALID_VALUE;
    if (copy->height > copy->source.height || copy->height > copy->target.height) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (queued == QUEUED) flush();
    queue[queued].call = 0;
    queue[queued++].copy = *copy;
    pthread_mutex_unlock(&lock);
    return 0;
}

void rig_enqueue(void (*call)(void)) {
    pthread_mutex_lock(&lock);
    if (queued == QUEUED) flush();
    queue[queued++].call = call;
    pthread_mutex_unlock(&lock);
}

static struct copy flat(uint64_t target, uint64_t source, size_t size) {
    struct copy copy = {.width = size, .height = 1, .depth = 1};
    copy.source = (struct side){.memory_type = DEVICE, .device = source, .pitch = size, .height = 1};
    copy.target = (struct side){.memory_type = DEVICE, .device = target, .pitch = size, .height = 1};
    return copy;
}

int cuStreamCreate(void **found, unsigned flags) {
    FAIL_AS_TOLD;
    *found = &stream;
    return flags == 1 ? 0 : INVALID_VALUE;
}

int cuStreamSynchronize(void *wanted) {
    FAIL_AS_TOLD;
    rig_flush();
    return wanted == &stream ? 0 : INVALID_VALUE;
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size, void *in_stream) {
    FAIL_AS_TOLD;
    struct copy copy = flat(target, (uintptr_t)source, size);
    return enqueue(&copy, in_stream);
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t size, void *in_stream) {
    FAIL_AS_TOLD;
    struct copy copy = flat((uintptr_t)target, source, size);
    return enqueue(&copy, in_stream);
}

int cuMemcpy3DAsync_v2(const struct copy *copy, void *in_stream) {
    FAIL_AS_TOLD;
    return enqueue(copy, in_stream);
}
