// The file of a compiled tokenizer, in memory. Little endian; hfx/exporter/compiled_tokenizer/file.py writes it:
//   "hfx-tok\n", version u32, number of sections u32, size of the file u64,
//   sections {tag u32, 0 u32, offset u64, size u64}: offsets are multiples of 8, in the file; the bytes of each.
// A section is an array of u8, u16, u32 or of the structs below. Others name it by its number. By tag there are
//   TOKEN_ENDS    u32 each: where the text of token 0, 1, ... ends in the section behind it, TOKEN_TEXT
//   TEMPLATES     two sections, of one text and of two: i32 type of the first text, of the second, counts of the special
//                 tokens before, between and behind, their ids, their types
//   RAW_ADDED     {id, flags} u32 each, of added tokens in the text; their Trie is in the two sections behind it
//   ADDED         likewise of those in the normalized text
//   NORMALIZER, PRE_TOKENIZER   Steps in their order: kinds are in normalizer.h and pre_tokenizer.h
//   MODEL         one Step, of the kinds in models.h
//   WORD_CLASSES  ByteTable for the added tokens' settings: bit 1 is a word's character, bit 2 white space
// A Trie is {EDGES, VALUES}, a ByteTable {blocks, bytes}, a CharMap {blocks, entries, text}: sections in that order.
#pragma once
#include "../memory.h"

namespace hfx {

// Values of a section.
template <typename Type> struct View {
    const Type *data = nullptr;
    size_t count = 0;

    const Type &operator[](size_t at) const { return data[at]; }
    const Type *begin() const { return data; }
    const Type *end() const { return data + count; }
};

// A step of a normalizer or pre-tokenizer, or the model: what it does, its first section, and settings.
struct Step {
    uint32_t kind, section, flags, value;
};

class File {
public:
    enum Tag : uint32_t {
        DATA, TOKEN_ENDS, TEMPLATES, RAW_ADDED, ADDED, NORMALIZER, PRE_TOKENIZER, MODEL, WORD_CLASSES,
    };
    static constexpr uint32_t NONE = ~0u;

    // Returns what is wrong with the file, else null.
    const char *open(const char *path);
    ~File();

    // The number of the first section of a tag; NONE where there is none.
    uint32_t find(Tag tag) const;
    // False where there is no such section, or where it isn't a row of the type.
    template <typename Type> [[nodiscard]] bool read(uint64_t section, View<Type> &view) const {
        Span bytes;
        if (!section_bytes(section, bytes) || bytes.size % sizeof(Type)) return false;
        view.data = reinterpret_cast<const Type *>(bytes.data), view.count = bytes.size / sizeof(Type);
        return true;
    }

private:
    struct Section {
        uint32_t tag, zero;
        uint64_t offset, size;
    };
    bool section_bytes(uint64_t section, Span &bytes) const;
    const char *read_all(int file);
    const char *check();

    char *data_ = nullptr;
    size_t size_ = 0;
    View<Section> sections_;
};

}  // namespace hfx
