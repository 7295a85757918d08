// Splits a text into the pieces that the model takes one by one, as Hugging Face's pre-tokenizers do.
#pragma once
#include "tables.h"

namespace hfx {

// The receiver of the pieces, in their order. `use` returns false if there is no memory.
struct Pieces {
    bool (*use)(Pieces &self, Span text);
};

class PreTokenizer {
public:
    enum Kind : uint32_t {
        BY_CLASS = 1,  // section: a ByteTable of the classes below
        BYTE_LEVEL,    // flags: 1 prepend a space if there is none, 2 split by GPT-2's pattern; section: its classes
        METASPACE,     // section: a text for spaces; flags: 1 prepend it to the first piece, 2 to each, 4 split at it
    };
    // The classes of characters for BY_CLASS. A run of the same class is a piece, but DROPPED characters are not in any
    // piece, and each ALONE character is a piece.
    enum Class : uint8_t { TOGETHER, DROPPED, ALONE, TOO };
    static constexpr size_t MOST_STEPS = 8;

    const char *open(const File &file);

    // `first`: the text is at the beginning of the caller's text. `buffers` has a buffer for each step. Returns false
    // if there is no memory.
    [[nodiscard]] bool split(Span text, bool first, Text *buffers, Pieces &pieces) const;

private:
    [[nodiscard]] bool step(size_t at, Span text, bool first, Text *buffers, Pieces &pieces) const;
    [[nodiscard]] bool by_class(size_t at, Span text, Text *buffers, Pieces &pieces) const;
    [[nodiscard]] bool by_gpt2(size_t at, Span text, Text *buffers, Pieces &pieces) const;
    [[nodiscard]] bool metaspace(size_t at, Span text, bool first, Text *buffers, Pieces &pieces) const;

    View<Step> steps_;
    ByteTable classes_[MOST_STEPS];
    View<char> texts_[MOST_STEPS];
};

}  // namespace hfx
