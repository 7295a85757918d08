/* CUDA's driver for tests, with the CPU's memory: its copies, by the names and structures of cuda.h. */

#include <stdint.h>
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

enum { HOST = 1, DEVICE = 2, INVALID_VALUE = 1, INVALID_DEVICE = 101 };

static int context;

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }

int cuDeviceGet(int *device, int number) {
    *device = number;
    return number ? INVALID_DEVICE : 0;
}

int cuDevicePrimaryCtxRetain(void **found, int device) {
    *found = &context;
    return device ? INVALID_DEVICE : 0;
}

int cuCtxSetCurrent(void *wanted) { return wanted == &context ? 0 : INVALID_VALUE; }

int cuStreamSynchronize(void *stream) { return stream ? INVALID_VALUE : 0; }

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) {
    memcpy((void *)(uintptr_t)target, source, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
    memcpy(target, (void *)(uintptr_t)source, size);
    return 0;
}

static char *line(const struct side *of, size_t height, size_t depth) {
    char *begin = of->memory_type == HOST ? (char *)of->host : (char *)(uintptr_t)of->device;
    return begin + (of->z + depth) * of->height * of->pitch + (of->y + height) * of->pitch + of->x_in_bytes;
}

int cuMemcpy3D_v2(const struct copy *copy) {
    if (copy->width > copy->source.pitch || copy->width > copy->target.pitch) return INVALID_VALUE;
    if (copy->height > copy->source.height || copy->height > copy->target.height) return INVALID_VALUE;
    for (size_t depth = 0; depth < copy->depth; depth++)
        for (size_t height = 0; height < copy->height; height++)
            memcpy(line(&copy->target, height, depth), line(&copy->source, height, depth), copy->width);
    return 0;
}
