#include "file.h"
#include <fcntl.h>
#include <stdlib.h>
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

// The file is read, not mapped: if another program overwrote a mapped file, this process could end (SIGBUS).
const char *File::open(const char *path) {
    int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return "it can't be opened";
    const char *wrong = read_all(file);
    close(file);
    return wrong ? wrong : check();
}

const char *File::read_all(int file) {
    struct stat status;
    if (fstat(file, &status) || !S_ISREG(status.st_mode) || status.st_size < int64_t(sizeof(Header))) return "it isn't a compiled tokenizer";
    size_ = size_t(status.st_size);
    data_ = static_cast<char *>(malloc(size_));
    if (!data_) return "there is no memory for it";
    for (size_t at = 0; at < size_;) {
        ssize_t read = ::read(file, data_ + at, size_ - at);
        if (read <= 0) return "it isn't whole";
        at += size_t(read);
    }
    return nullptr;
}

bool File::has_bytes_of(const char *path) const {
    int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    char bytes[1 << 14];
    size_t at = 0;
    ssize_t got;
    while ((got = ::read(file, bytes, sizeof bytes)) > 0 && size_t(got) <= size_ - at && !memcmp(bytes, data_ + at, size_t(got))) at += size_t(got);
    close(file);
    return !got && at == size_;
}

const char *File::check() {
    Header header;
    memcpy(&header, data_, sizeof header);
    if (memcmp(header.magic, "hfx-tok\n", sizeof header.magic)) return "it isn't a compiled tokenizer";
    if (header.version != VERSION) return "another version of hfx has compiled it";
    if (header.size != size_) return "it isn't whole";
    if (header.sections > (size_ - sizeof header) / sizeof(Section)) return "its sections are damaged";
    sections_ = {reinterpret_cast<const Section *>(data_ + sizeof header), header.sections};
    for (const Section &section : sections_)
        if (section.offset % 8 || section.offset > size_ || section.size > size_ - section.offset)
            return "its sections are damaged";
    return nullptr;
}

File::~File() { free(data_); }

uint32_t File::find(Tag tag) const {
    for (size_t at = 0; at < sections_.count; at++)
        if (sections_[at].tag == uint32_t(tag)) return uint32_t(at);
    return NONE;
}

bool File::section_bytes(uint64_t section, Span &bytes) const {
    if (section >= sections_.count) return false;
    bytes = {data_ + sections_[section].offset, size_t(sections_[section].size)};
    return true;
}

}  // namespace hfx
