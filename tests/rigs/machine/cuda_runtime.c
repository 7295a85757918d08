/* CUDA's runtime and its matrix libraries without a GPU: what ONNX Runtime's CUDA provider links with.
 *
 * The memory of the device is the host's, copies are done, launches and products are counted and do nothing. So graphs
 * are divided between CPU and GPU, prepared, captured and replayed by the provider's own code; only the numbers are
 * wrong. During a capture, calls that CUDA forbids there fail as they do with a GPU. Built as libcudart.so.13,
 * libcublas.so.13, libcublasLt.so.13, libcurand.so.10 and libcudnn.so.9 (cuda_host.py); types are those of CUDA 13.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, FORBIDDEN_WHILE_CAPTURING = 900 };
enum { DEVICE_TO_HOST = 2, DEVICE_MEMORY = 2, ACTIVE_CAPTURE = 1, SYMBOL_NOT_FOUND = 1 };
#define MEMORY (64ul << 30)
#define SHARED_BYTES 232448 /* of a block on compute capability 9.0 */
typedef struct { unsigned x, y, z; } dim3;

/* Counters by name */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[160]; long count; } counters[4096];
static size_t used_counters;
static int capturing;

static void count(const char *what, const char *of) {
    char name[160];
    snprintf(name, sizeof name, *of ? "%s %s" : "%s", what, of);
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < used_counters && strcmp(counters[at].name, name)) at++;
    if (at == used_counters && at < sizeof counters / sizeof *counters) strcpy(counters[used_counters].name, name), counters[used_counters++].count = 0;
    if (at < used_counters) counters[at].count++;
    pthread_mutex_unlock(&lock);
}

static int forbidden(const char *what) {
    count(what, "");
    return capturing ? FORBIDDEN_WHILE_CAPTURING : 0;
}

/* Writes lines of a count, a space and a name, and sets the counts to 0. Returns the bytes that all lines take. */
size_t counted(char *lines, size_t size) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < used_counters; at++)
        bytes += (size_t)snprintf(bytes < size ? lines + bytes : NULL, bytes < size ? size - bytes : 0, "%ld %s\n", counters[at].count, counters[at].name);
    used_counters = 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* At the end of a process, writes the lines to the file that CUDA_COUNTS names. */
__attribute__((destructor)) static void write_counts(void) {
    static char lines[1 << 20];
    const char *path = getenv("CUDA_COUNTS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    counted(lines, sizeof lines);
    fputs(lines, file);
    fclose(file);
}

/* Memory: one range of addresses, of which freed parts are not used again */

static char *memory;
static size_t taken;

static int take(void **out, size_t bytes) {
    pthread_mutex_lock(&lock);
    if (!memory) memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int full = memory == MAP_FAILED || bytes > MEMORY - taken;
    *out = full ? NULL : memory + taken;
    if (!full) taken += (bytes + 511) / 512 * 512;
    pthread_mutex_unlock(&lock);
    return full ? OUT_OF_MEMORY : 0;
}

int cudaMalloc(void **out, size_t bytes) { return forbidden("cudaMalloc") ? FORBIDDEN_WHILE_CAPTURING : take(out, bytes); }
int cudaMallocFromPoolAsync(void **out, size_t bytes, void *pool, void *stream) { return count("cudaMalloc", ""), take(out, bytes); }
int cudaFree(void *block) { return forbidden("cudaFree"); }
int cudaFreeAsync(void *block, void *stream) { return count("cudaFree", ""), 0; }
int cudaHostAlloc(void **out, size_t bytes, unsigned flags) { return count("cudaHostAlloc", ""), (*out = calloc(1, bytes)) ? 0 : OUT_OF_MEMORY; }
int cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }
int cudaFreeHost(void *block) { return free(block), 0; }
int cudaMemGetInfo(size_t *left, size_t *all) { return *all = MEMORY, *left = MEMORY - taken, 0; }
int cudaPointerGetAttributes(struct { int type, device; void *on_device, *on_host; } *out, char *pointer) {
    int inside = memory && pointer >= memory && pointer < memory + taken;
    out->type = inside ? DEVICE_MEMORY : 0, out->device = 0, out->on_device = out->on_host = pointer;
    return 0;
}

static void count_copy(const char *how, int kind) {
    static const char *const KINDS[] = {"on the host", "to the device", "to the host", "on the device", "anywhere"};
    count(how, KINDS[kind]);
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    count_copy("copy and wait", kind);
    return capturing ? FORBIDDEN_WHILE_CAPTURING : (memcpy(to, from, bytes), 0);
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) { return count_copy("copy", kind), memcpy(to, from, bytes), 0; }
int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t pitch, size_t width, size_t lines, int kind, void *stream) {
    count_copy("copy", kind);
    for (; lines--; to += to_pitch, from += pitch) memcpy(to, from, width);
    return 0;
}
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t from, int kind) {
    memset(to, 0, bytes);
    if (bytes == sizeof(int)) *(int *)to = SHARED_BYTES / 4; /* kernels state the shared memory that they need */
    return forbidden("copy and wait of a symbol");
}
int cudaMemset(void *to, int value, size_t bytes) { return memset(to, value, bytes), forbidden("cudaMemset"); }
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) { return count("set memory", ""), memset(to, value, bytes), 0; }

/* Kernels */

static struct { const void *function; const char *name; } *kernels;
static size_t known_kernels;

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size, int constant, int global) {}
void __cudaRegisterFunction(void **handle, const char *host, char *function, const char *name, int limit, void *a, void *b, void *c, void *d, int *e) {
    if (!(known_kernels & (known_kernels + 1))) kernels = realloc(kernels, 2 * (known_kernels + 1) * sizeof *kernels);
    if (kernels) kernels[known_kernels].function = host, kernels[known_kernels++].name = name;
}
static int launch(const void *function) {
    const char *name = "of no name";
    for (size_t at = 0; at < known_kernels; at++)
        if (kernels[at].function == function) name = kernels[at].name;
    return count("launch", name), 0;
}
static _Thread_local struct { dim3 grid, block; size_t shared; void *stream; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
    return 0;
}
int __cudaGetKernel(const void **kernel, const void *function) { return *kernel = function, 0; }
int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) { return launch(kernel); }
int cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) { return launch(kernel); }
int cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) { return launch(kernel); }
int cudaLaunchKernelExC(const void *settings, const void *kernel, void **arguments) { return launch(kernel); }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { return function(data), 0; }
int cudaFuncGetAttributes(struct { size_t shared, constant, local; int threads, registers, ptx, binary, cache, dynamic, more[20]; } *out, const void *function) {
    memset(out, 0, 56);
    out->threads = 1024, out->registers = 64, out->ptx = out->binary = 90, out->dynamic = SHARED_BYTES;
    return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function, int threads, size_t shared, unsigned flags) { return *out = 2, 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *found) {
    *out = NULL;
    if (found) *found = SYMBOL_NOT_FOUND;
    return 0;
}

/* The device: an H100's numbers at the places of CUDA 13's cudaDeviceProp */

int cudaGetDeviceProperties(char *out, int device) {
    static const struct { size_t at; int value; } NUMBERS[] = {
        {304, 65536}, {308, 32}, {320, 1024}, {324, 1024}, {328, 1024}, {332, 64}, {336, 2147483647}, {340, 65535}, {344, 65535}, {360, 9}, {384, 132}, {596, 50 << 20}, {604, 2048}, {624, 233472}, {672, SHARED_BYTES},
    };
    memset(out, 0, 1008);
    strcpy(out, "no GPU");
    *(size_t *)(out + 288) = MEMORY, *(size_t *)(out + 296) = 49152;
    for (size_t each = 0; each < sizeof NUMBERS / sizeof *NUMBERS; each++) *(int *)(out + NUMBERS[each].at) = NUMBERS[each].value;
    return 0;
}
int cudaDeviceGetAttribute(int *out, int attribute, int device) {
    static const int NUMBERS[][2] = {{1, 1024}, {8, 49152}, {10, 32}, {16, 132}, {38, 50 << 20}, {39, 2048}, {75, 9}, {76, 0}, {81, SHARED_BYTES}, {97, SHARED_BYTES}};
    *out = 1;
    for (size_t each = 0; each < sizeof NUMBERS / sizeof *NUMBERS; each++)
        if (NUMBERS[each][0] == attribute) *out = NUMBERS[each][1];
    return 0;
}
int cudaGetDeviceCount(int *out) { return *out = 1, 0; }
int cudaGetDevice(int *out) { return *out = 0, 0; }
int cudaSetDevice(int device) { return device ? INVALID_DEVICE : 0; }
int cudaDriverGetVersion(int *out) { return *out = 13000, 0; }
int cudaRuntimeGetVersion(int *out) { return *out = 13000, 0; }
const char *cudaGetErrorName(int code) { return code == FORBIDDEN_WHILE_CAPTURING ? "cudaErrorStreamCaptureUnsupported" : "cudaError"; }
const char *cudaGetErrorString(int code) { return code == FORBIDDEN_WHILE_CAPTURING ? "operation not permitted when stream is capturing" : "an error of the test's CUDA"; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }

/* Streams, events, captured graphs */

static int handle(void **out) { return (*out = calloc(1, 8)) ? 0 : OUT_OF_MEMORY; }
int cudaStreamCreate(void **out) { return handle(out); }
int cudaStreamCreateWithFlags(void **out, unsigned flags) { return handle(out); }
int cudaStreamDestroy(void *stream) { return free(stream), 0; }
int cudaStreamSynchronize(void *stream) { return forbidden("wait for the stream"); }
int cudaDeviceSynchronize(void) { return forbidden("wait for the device"); }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return count("stream waits", ""), 0; }
int cudaStreamBeginCapture(void *stream, int mode) { return count("begin to capture", ""), capturing = 1, 0; }
int cudaStreamEndCapture(void *stream, void **graph) { return capturing = 0, handle(graph); }
int cudaStreamIsCapturing(void *stream, int *out) { return *out = capturing ? ACTIVE_CAPTURE : 0, 0; }
int cudaGraphInstantiate(void **out, void *graph, unsigned long long flags) { return handle(out); }
int cudaGraphLaunch(void *graph, void *stream) { return count("launch a captured graph", ""), 0; }
int cudaGraphDestroy(void *graph) { return free(graph), 0; }
int cudaGraphExecDestroy(void *graph) { return free(graph), 0; }
int cudaEventCreate(void **out) { return handle(out); }
int cudaEventCreateWithFlags(void **out, unsigned flags) { return handle(out); }
int cudaEventDestroy(void *event) { return free(event), 0; }
int cudaEventElapsedTime(float *out, void *from, void *to) { return *out = 1, 0; }
int cudaMemPoolCreate(void **out, const void *settings) { return handle(out); }
int cudaMemPoolDestroy(void *pool) { return free(pool), 0; }
int cudaMemPoolGetAttribute(void *pool, int attribute, long *out) { return *out = 0, 0; }
int cudaLibraryLoadData(void **out, const void *code, void *a, void **b, unsigned c, void *d, void **e, unsigned f) { return handle(out); }
int cudaLibraryGetKernel(void **out, void *library, const char *name) { return handle(out); }

/* Matrix libraries */

#define MAKES(name) int name(void **out) { return handle(out); }
#define MULTIPLIES(name) int name(void) { return count("product", #name), 0; }
#define NOTHING(name) int name(void) { return 0; }
#define NAMES(name) const char *name(int code) { return "an error of the test's CUDA"; }
MAKES(cudnnCreate) MAKES(cublasCreate_v2) MAKES(cublasLtCreate) MAKES(cublasLtMatmulPreferenceCreate)
MAKES(cublasLtMatmulDescCreate) MAKES(cublasLtMatrixLayoutCreate) MAKES(cublasLtMatrixTransformDescCreate)
MULTIPLIES(cublasDgemmBatched) MULTIPLIES(cublasDgemmStridedBatched) MULTIPLIES(cublasDgemm_v2) MULTIPLIES(cublasGemmBatchedEx)
MULTIPLIES(cublasGemmEx) MULTIPLIES(cublasGemmStridedBatchedEx) MULTIPLIES(cublasSgemmBatched)
MULTIPLIES(cublasSgemmStridedBatched) MULTIPLIES(cublasSgemm_v2) MULTIPLIES(cublasLtMatmul)
NOTHING(cublasDestroy_v2) NOTHING(cublasDgeam) NOTHING(cublasDgetrfBatched) NOTHING(cublasDgetriBatched) NOTHING(cublasScopy_v2)
NOTHING(cublasSetMathMode) NOTHING(cublasSetStream_v2) NOTHING(cublasSgeam) NOTHING(cublasSgetrfBatched)
NOTHING(cublasSgetriBatched) NOTHING(cublasSscal_v2) NOTHING(cublasLtDestroy) NOTHING(cublasLtMatmulAlgoConfigSetAttribute)
NOTHING(cublasLtMatmulAlgoInit) NOTHING(cublasLtMatmulDescDestroy) NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatmulPreferenceDestroy) NOTHING(cublasLtMatmulPreferenceSetAttribute) NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatrixTransform) NOTHING(cublasLtMatrixTransformDescDestroy)
NOTHING(cudaEventRecord) NOTHING(cudaEventRecordWithFlags) NOTHING(cudaEventSynchronize) NOTHING(cudaFuncSetAttribute)
NOTHING(cudaKernelSetAttributeForDevice) NOTHING(cudaLibraryUnload) NOTHING(cudaMemPoolSetAttribute) NOTHING(cudaMemPoolTrimTo)
NOTHING(cuTensorMapEncodeTiled) NOTHING(cudnnDestroy) NOTHING(cudnnSetStream)
NAMES(cublasGetStatusName) NAMES(cublasGetStatusString)
size_t cudnnGetVersion(void) { return 80000; } /* too old for attention, which then takes CUDA's own kernels */
int cublasGetMathMode(void *library, int *out) { return *out = 0, 0; }
int cublasLtMatmulAlgoGetHeuristic(void *a, void *b, void *c, void *d, void *e, void *f, void *g, int most, char *results, int *found) {
    return memset(results, 0, 96), *found = 1, 0;
}
