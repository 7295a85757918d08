#include "file.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hfx {

namespace {
struct Header {
    char magic[8];
    uint32_t version, sections;
    uint64_t size;
};
constexpr uint32_t VERSION = 1;
}  // namespace

const char *File::open(const char *path) {
    int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return "it can't be opened";
    struct stat status;
    bool sized = !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size >= int64_t(sizeof(Header));
    void *mapped = sized ? mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    close(file);
    if (!sized) return "it isn't a compiled tokenizer";
    if (mapped == MAP_FAILED) return "it can't be mapped";
    mapped_ = static_cast<const char *>(mapped), size_ = size_t(status.st_size);
    return check();
}

const char *File::check() {
    Header header;
    memcpy(&header, mapped_, sizeof header);
    if (memcmp(header.magic, "hfx-tok\n", sizeof header.magic)) return "it isn't a compiled tokenizer";
    if (header.version != VERSION) return "another version of hfx has compiled it";
    if (header.size != size_) return "it isn't whole";
    if (header.sections > (size_ - sizeof header) / sizeof(Section)) return "its sections are damaged";
    sections_ = {reinterpret_cast<const Section *>(mapped_ + sizeof header), header.sections};
    for (const Section &section : sections_)
        if (section.offset % 8 || section.offset > size_ || section.size > size_ - section.offset)
            return "its sections are damaged";
    return nullptr;
}

File::~File() {
    if (mapped_) munmap(const_cast<char *>(mapped_), size_);
}

uint32_t File::find(Tag tag) const {
    for (size_t at = 0; at < sections_.count; at++)
        if (sections_[at].tag == uint32_t(tag)) return uint32_t(at);
    return NONE;
}

bool File::section_bytes(uint64_t section, Span &bytes) const {
    if (section >= sections_.count) return false;
    bytes = {mapped_ + sections_[section].offset, size_t(sections_[section].size)};
    return true;
}

}  // namespace hfx
