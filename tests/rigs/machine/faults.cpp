// Loaded before libc (LD_PRELOAD), this library counts the calls on files below a folder, and lets the n-th of them fail.
//
// A call counts only if it can have the error: ENOSPC belongs to writing, EMFILE to opening. A path that begins with
// `pipe:` stands for pipes. No header of libc that declares the replaced functions is included: they differ in noexcept.

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

typedef long ssize;
typedef long offset;

extern "C" {
char* getcwd(char*, size_t);
int getpid();
int kill(int, int);
int fcntl(int, int, ...);

long faults_count, faults_fired;  // calls that could fail, and calls that did
char faults_call[4200];           // the first that failed
}

namespace {

enum Error : unsigned { IO = 1, SPACE = 2, FILES = 4, MEMORY = 8, INTERRUPT = 16, SHORT = 32, KILL = 64 };
constexpr int AT_CWD = -100, CREATE = 0100, WRITING = 03, GET_FLAGS = 3, SIGNAL_KILL = 9, CODES = 7;
constexpr int ERRNO[CODES] = {EIO, ENOSPC, EMFILE, ENOMEM, EINTR, 0, 0};
constexpr size_t PATH = 4096;

char root[PATH];
size_t root_size;
unsigned kind;  // an Error; 0: nothing is counted
long at;
bool persistent;

template <typename Function>
Function real(const char* name, Function) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

ssize target_of(int descriptor, char* target) {
    static auto link = reinterpret_cast<ssize (*)(const char*, char*, size_t)>(dlsym(RTLD_NEXT, "readlink"));
    char path[40] = "/proc/self/fd/", digits[12];
    int count = 0;
    size_t end = strlen(path);
    do digits[count++] = static_cast<char>('0' + descriptor % 10);
    while (descriptor /= 10);
    while (count) path[end++] = digits[--count];
    path[end] = 0;
    ssize size = link(path, target, PATH - 1);
    target[size < 0 ? 0 : size] = 0;
    return size;
}

bool counted(const char* call, const char* path) {
    if (strncmp(path, root, root_size)) return false;
    long number = __atomic_add_fetch(&faults_count, 1, __ATOMIC_SEQ_CST);
    if (number != at && !(persistent && at && number > at)) return false;
    if (!__atomic_fetch_add(&faults_fired, 1, __ATOMIC_SEQ_CST)) {
        strncpy(faults_call, call, 60);
        strcat(faults_call, " ");
        strncat(faults_call, path + (root_size < strlen(path) ? root_size : 0), PATH);
    }
    if (kind == KILL) kill(getpid(), SIGNAL_KILL);
    for (int code = 0; code < CODES; ++code)
        if (kind == 1u << code) errno = ERRNO[code];
    return true;
}

bool fails(const char* call, unsigned errors, const char* path, int folder = AT_CWD) {
    if (!(kind & errors)) return false;
    int before = errno;
    char whole[2 * PATH];
    if (path[0] == '/') {
        whole[0] = 0;
    } else {
        if (folder == AT_CWD ? !getcwd(whole, PATH) : target_of(folder, whole) < 0) return false;
        strcat(whole, "/");
    }
    strncat(whole, path, PATH - 1);
    bool failed = counted(call, whole);
    if (!failed) errno = before;
    return failed;
}

bool fails(const char* call, unsigned errors, int descriptor) {
    if (!(kind & errors) || descriptor < 0) return false;
    int before = errno;
    char target[PATH];
    bool failed = target_of(descriptor, target) > 0 && counted(call, target);
    if (!failed) errno = before;
    return failed;
}

// Whether the call fails. A short one is only made shorter.
bool fails_or_shortens(const char* call, unsigned errors, int descriptor, size_t* size) {
    if (!fails(call, errors, descriptor)) return false;
    if (kind != SHORT) return true;
    if (*size > 1) *size /= 2;
    return false;
}

constexpr unsigned LOOKUP = IO | MEMORY, CHANGE = IO | SPACE | MEMORY | KILL, REMOVAL = IO | MEMORY | KILL;
constexpr unsigned OPEN = IO | FILES | MEMORY | INTERRUPT, READ = IO | INTERRUPT | SHORT;
constexpr unsigned WRITE = IO | SPACE | INTERRUPT | SHORT | KILL, FLUSH = IO | SPACE | INTERRUPT | KILL;

unsigned of_flags(int flags) { return flags & CREATE ? OPEN | SPACE | KILL : OPEN; }

}  // namespace

#define MODE(flags)                             \
    unsigned mode = 0;                          \
    if ((flags) & CREATE) {                     \
        va_list rest;                           \
        va_start(rest, flags);                  \
        mode = va_arg(rest, unsigned);          \
        va_end(rest);                           \
    }

// A function of libc whose `failing` calls return `failure`.
#define REPLACED(type, name, parameters, arguments, failure, failing) \
    extern "C" type name parameters {                                 \
        static auto next = real(#name, &name);                        \
        return failing ? failure : next arguments;                    \
    }
#define REPLACED_OPEN(name)                                                                     \
    extern "C" int name(const char* path, int flags, ...) {                                     \
        static auto next = reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, #name)); \
        MODE(flags)                                                                             \
        return fails("open", of_flags(flags), path) ? -1 : next(path, flags, mode);             \
    }
#define REPLACED_OPENAT(name)                                                                   \
    extern "C" int name(int folder, const char* path, int flags, ...) {                         \
        static auto next = reinterpret_cast<int (*)(int, const char*, int, ...)>(dlsym(RTLD_NEXT, #name)); \
        MODE(flags)                                                                             \
        return fails("open", of_flags(flags), path, folder) ? -1 : next(folder, path, flags, mode); \
    }

REPLACED_OPEN(open)
REPLACED_OPEN(open64)
REPLACED_OPENAT(openat)
REPLACED_OPENAT(openat64)
REPLACED(int, stat64, (const char* path, void* found), (path, found), -1, fails("stat", LOOKUP, path))
REPLACED(int, lstat64, (const char* path, void* found), (path, found), -1, fails("lstat", LOOKUP, path))
REPLACED(int, fstat64, (int file, void* found), (file, found), -1, fails("fstat", LOOKUP, file))
REPLACED(int, fstatat64, (int folder, const char* path, void* found, int flags), (folder, path, found, flags), -1,
         fails("fstatat", LOOKUP, path, folder))
REPLACED(int, statvfs64, (const char* path, void* found), (path, found), -1, fails("statvfs", LOOKUP, path))
REPLACED(int, access, (const char* path, int mode), (path, mode), -1, fails("access", LOOKUP, path))
REPLACED(void*, opendir, (const char* path), (path), nullptr, fails("opendir", IO | FILES | MEMORY, path))
REPLACED(void*, fdopendir, (int folder), (folder), nullptr, fails("fdopendir", IO | MEMORY, folder))
REPLACED(int, rename, (const char* from, const char* to), (from, to), -1, fails("rename", CHANGE, from))
REPLACED(int, renameat, (int old, const char* from, int folder, const char* to), (old, from, folder, to), -1,
         fails("rename", CHANGE, from, old))
REPLACED(int, link, (const char* from, const char* to), (from, to), -1, fails("link", CHANGE, to))
REPLACED(int, linkat, (int old, const char* from, int folder, const char* to, int flags), (old, from, folder, to, flags),
         -1, fails("link", CHANGE, to, folder))
REPLACED(int, symlink, (const char* from, const char* to), (from, to), -1, fails("symlink", CHANGE, to))
REPLACED(int, mkdir, (const char* path, unsigned mode), (path, mode), -1, fails("mkdir", CHANGE, path))
REPLACED(int, mkdirat, (int folder, const char* path, unsigned mode), (folder, path, mode), -1,
         fails("mkdir", CHANGE, path, folder))
REPLACED(int, rmdir, (const char* path), (path), -1, fails("rmdir", REMOVAL, path))
REPLACED(int, unlink, (const char* path), (path), -1, fails("unlink", REMOVAL, path))
REPLACED(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags), -1,
         fails("unlink", REMOVAL, path, folder))
REPLACED(int, chmod, (const char* path, unsigned mode), (path, mode), -1, fails("chmod", REMOVAL, path))
REPLACED(int, utimensat, (int folder, const char* path, const void* times, int flags), (folder, path, times, flags), -1,
         path && fails("utime", REMOVAL, path, folder))
REPLACED(int, fsync, (int file), (file), -1, fails("fsync", FLUSH, file))
REPLACED(int, fdatasync, (int file), (file), -1, fails("fdatasync", FLUSH, file))
REPLACED(int, ftruncate64, (int file, offset size), (file, size), -1, fails("ftruncate", FLUSH, file))
REPLACED(int, flock, (int file, int operation), (file, operation), -1, fails("flock", IO | INTERRUPT, file))
REPLACED(void*, mmap64, (void* address, size_t size, int protection, int flags, int file, offset from),
         (address, size, protection, flags, file, from), reinterpret_cast<void*>(-1), fails("mmap", LOOKUP, file))
REPLACED(ssize, read, (int file, void* data, size_t size), (file, data, size), -1,
         fails_or_shortens("read", READ, file, &size))
REPLACED(ssize, pread64, (int file, void* data, size_t size, offset from), (file, data, size, from), -1,
         fails_or_shortens("pread", READ, file, &size))
REPLACED(ssize, write, (int file, const void* data, size_t size), (file, data, size), -1,
         fails_or_shortens("write", WRITE, file, &size))
REPLACED(ssize, pwrite64, (int file, const void* data, size_t size, offset to), (file, data, size, to), -1,
         fails_or_shortens("pwrite", WRITE, file, &size))
REPLACED(ssize, sendfile64, (int to, int from, offset* place, size_t size), (to, from, place, size), -1,
         fails_or_shortens("sendfile", WRITE, to, &size))
REPLACED(ssize, copy_file_range, (int from, offset* place, int to, offset* there, size_t size, unsigned flags),
         (from, place, to, there, size, flags), -1, fails_or_shortens("copy_file_range", WRITE, to, &size))
REPLACED(int, pipe2, (int* ends, int flags), (ends, flags), -1,
         kind & FILES && counted("pipe", "pipe:"))

// The descriptor is gone also when close reports an error, as network file systems do for delayed writes.
extern "C" int close(int file) {
    static auto next = real("close", &close);
    bool failed = kind && fcntl(file, GET_FLAGS) & WRITING && fails("close", IO | SPACE, file);
    int error = errno, result = next(file);
    if (failed) errno = error;
    return failed ? -1 : result;
}

extern "C" void faults_disarm() { kind = 0; }

// Fail the call `number` on a path that begins with `folder`, and all later ones if `stays`; 0: only count.
extern "C" void faults_arm(const char* folder, unsigned error, long number, int stays) {
    strncpy(root, folder, PATH - 1);
    root_size = strlen(root);
    at = number;
    persistent = stays;
    faults_count = faults_fired = 0;
    faults_call[0] = 0;
    kind = error;
}
