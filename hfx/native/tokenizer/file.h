// The file of a compiled tokenizer, in memory. It is little-endian; hfx/exporter/compiled_tokenizer/file.py writes it:
//   "hfx-tok\n", version u32, number of sections u32, size of the file u64,
//   sections {tag u32, 0 u32, offset u64, size u64}, whose offsets in the file are multiples of 8; the sections' bytes.
// A section is an array of numbers or of the structs below. Other sections refer to it by its number. The tags are
//   TOKEN_ENDS    u32 each: where the text of token 0, 1, ... ends in the next section, which has all tokens' texts
//   TEMPLATES     two sections, for one text and for two: i32 type of the first text and of the second, counts of the
//                 special tokens before, between and behind the texts; then, for each of the three, their ids and types
//   RAW_ADDED     {id, flags} u32 of each added token that is found in the raw text; the next two sections: their Trie
//   ADDED         the same for the added tokens that are found in the normalized text
//   NORMALIZER, PRE_TOKENIZER   the Steps in their order; their kinds are in normalizer.h and pre_tokenizer.h
//   MODEL         one Step; its kinds are in models.h
//   WORD_CLASSES  a ByteTable for the flags of added tokens: 1 is a character of a word, 2 is white space
// A Trie is the sections {EDGES, VALUES}, a ByteTable {blocks, bytes}, and a CharMap {blocks, entries, text}, in that
// order.
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

// A step of a normalizer or pre-tokenizer, or the model: its kind, its first section, and its settings.
struct Step {
    uint32_t kind, section, flags, value;
};

class File {
public:
    enum Tag : uint32_t {
        DATA, TOKEN_ENDS, TEMPLATES, RAW_ADDED, ADDED, NORMALIZER, PRE_TOKENIZER, MODEL, WORD_CLASSES,
    };
    static constexpr uint32_t NONE = ~0u;

    // Reads the file `path`. Returns an error message, or null.
    const char *open(const char *path);
    // Whether the file `path` has the bytes of the file that was read.
    bool has_bytes_of(const char *path) const;
    ~File();

    // The number of the first section with a tag, or NONE.
    uint32_t find(Tag tag) const;
    // Returns false if there is no such section, or if its size is not a multiple of the type's.
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
