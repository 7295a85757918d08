// Splits a text into the pieces that the model takes one by one, as Hugging Face's pre-tokenizers.
#pragma once
#include "tables.h"

namespace hfx {

// Where pieces go, in their order; false: there is no memory.
struct Pieces {
    bool (*use)(Pieces &self, Span text);
};

class PreTokenizer {
public:
    enum Kind : uint32_t {
        BY_CLASS = 1,  // section: a ByteTable of the classes below
        BYTE_LEVEL,    // flags: 1 a space is put before texts without, 2 is split by GPT-2's pattern; section: its classes
        METASPACE,     // section: a text for spaces; flags: 1 before the first piece, 2 before each, 4 is split at them
    };
    // What characters are to BY_CLASS: runs of the same class are pieces, but DROPPED between them, and ALONE each one.
    enum Class : uint8_t { TOGETHER, DROPPED, ALONE, TOO };
    static constexpr size_t MOST_STEPS = 8;

    const char *open(const File &file);

    // `first`: the text is at the beginning of what the caller has. `buffers` has a text for each step.
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
