#include "huge_pages.h"
#include "held.h"
#include "memory.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace hfx {
namespace {

constexpr size_t HUGE_PAGE = 2 << 20, ARENA = 256 << 20;

size_t page() { return size_t(getpagesize()); }  // aarch64: 4 KB or 64 KB
size_t up_to_page(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

// A range of addresses that takes memory only as it is written. Copies are packed one behind the other, because a huge
// page must be whole.
struct Arena {
    char *memory;
    size_t size, used, copies;
};

struct Copy {
    Copy *next;
    Arena *arena;
    int8_t *values;
    size_t bytes, users;
};

Copy *all_copies;
Arena *newest;

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // sessions may be opened and closed in several threads

bool has_huge_pages() {
    char text[64] = {};
    const int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool read_any = read(file, text, sizeof text - 1) > 0;
    close(file);
    return read_any && !strstr(text, "[never]");
}

// Whether no page has anything but what a mapped file, or memory that processes share, has at its place.
bool is_of_file(uintptr_t begin, uintptr_t end) {
    constexpr uint64_t PRESENT = uint64_t(1) << 63, SWAPPED = uint64_t(1) << 62, OF_FILE = uint64_t(1) << 61;
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool all = true;
    for (uint64_t pages[512]; all && begin < end;) {
        const size_t left = (end - begin) / page(), count = left < 512 ? left : 512;
        all = pread(file, pages, count * 8, off_t(begin / page() * 8)) == ssize_t(count * 8);
        for (size_t i = 0; all && i < count; i++) all = !(pages[i] & SWAPPED) && (!(pages[i] & PRESENT) || pages[i] & OF_FILE);
        begin += count * page();
    }
    close(file);
    return all;
}

bool make_arena(size_t bytes) {
    const size_t size = (bytes > ARENA ? bytes : ARENA) + HUGE_PAGE;
    Arena *arena = make<Arena>();
    void *memory = arena ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        destroy(arena);
        return false;
    }
    madvise(memory, size, MADV_HUGEPAGE);
    const size_t first = HUGE_PAGE - reinterpret_cast<uintptr_t>(memory) % HUGE_PAGE;
    *arena = {static_cast<char *>(memory), size, first, 0};
    newest = arena;
    return true;
}

Copy *make_copy(const int8_t *values, size_t bytes) {
    static bool asked, possible;
    if (!asked) asked = true, possible = has_huge_pages();
    const size_t room = up_to_page(bytes);
    if (!possible || ((!newest || newest->size - newest->used < room) && !make_arena(room))) return nullptr;
    Copy *copy = make<Copy>();
    if (!copy) return nullptr;
    *copy = {all_copies, newest, reinterpret_cast<int8_t *>(newest->memory + newest->used), bytes, 0};
    memcpy(copy->values, values, bytes);
    leave_file(values, bytes);
    newest->used += room, newest->copies++;
    return all_copies = copy;
}

}  // namespace

void leave_file(const void *values, size_t bytes) {
    const uintptr_t begin = up_to_page(uintptr_t(values)), end = (uintptr_t(values) + bytes) / page() * page();
    if (begin < end && is_of_file(begin, end)) madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);
}

const int8_t *in_huge_pages(const int8_t *values, size_t bytes) {
    Held held(lock);
    Copy *copy = all_copies;
    while (copy && (copy->bytes != bytes || memcmp(copy->values, values, bytes))) copy = copy->next;
    if (!copy) copy = make_copy(values, bytes);
    if (!copy) return values;
    copy->users++;
    return copy->values;
}

bool leave_huge_pages(const int8_t *values) {
    Held held(lock);
    Copy **at = &all_copies;
    while (*at && (*at)->values != values) at = &(*at)->next;
    Copy *copy = *at;
    if (!copy || --copy->users) return copy;
    *at = copy->next;
    Arena *arena = copy->arena;
    madvise(copy->values, up_to_page(copy->bytes), MADV_DONTNEED);
    destroy(copy);
    if (--arena->copies) return true;
    if (arena == newest) newest = nullptr;
    munmap(arena->memory, arena->size);
    destroy(arena);
    return true;
}

}  // namespace hfx
