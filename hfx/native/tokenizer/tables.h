// Tables by code point, in blocks of 256: blocks[code >> 8] is the number of the block. Most blocks are alike.
#pragma once
#include "file.h"

namespace hfx {

constexpr uint32_t CODE_POINTS = 0x110000;

// A byte for each code point.
class ByteTable {
public:
    [[nodiscard]] bool open(const File &file, uint64_t section) {
        if (!file.read(section, blocks_) || !file.read(section + 1, bytes_)) return false;
        return blocks_.count == CODE_POINTS / 256 && check();
    }
    uint8_t operator[](uint32_t code) const {
        return code < CODE_POINTS ? bytes_[blocks_[code >> 8] * 256u + (code & 255)] : 0;
    }

private:
    bool check() const {
        for (uint16_t block : blocks_)
            if (block >= bytes_.count / 256) return false;
        return true;
    }
    View<uint16_t> blocks_;
    View<uint8_t> bytes_;
};

// A text for each code point. An entry is 0 for the code point itself, else length | offset << 8 in `text`.
class CharMap {
public:
    [[nodiscard]] bool open(const File &file, uint64_t section) {
        if (!file.read(section, blocks_) || !file.read(section + 1, entries_) || !file.read(section + 2, text_)) return false;
        return blocks_.count == CODE_POINTS / 256 && check();
    }
    uint32_t entry(uint32_t code) const {
        return code < CODE_POINTS ? entries_[blocks_[code >> 8] * 256u + (code & 255)] : 0;
    }
    Span text(uint32_t entry) const { return {text_.data + (entry >> 8), entry & 255}; }

private:
    bool check() const {
        for (uint16_t block : blocks_)
            if (block >= entries_.count / 256) return false;
        for (uint32_t entry : entries_)
            if ((entry & 255) > text_.count || entry >> 8 > text_.count - (entry & 255)) return false;
        return true;
    }
    View<uint16_t> blocks_;
    View<uint32_t> entries_;
    View<char> text_;
};

}  // namespace hfx
