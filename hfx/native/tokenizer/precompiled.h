// SentencePiece's table of characters (precompiled_charsmap), as tokenizers' Precompiled reads it: a cluster of fewer
// than six bytes becomes what the table has for its shortest beginning, otherwise each character what it has for that.
#pragma once
#include "tables.h"

namespace hfx {

class Precompiled {
public:
    // Sections {units of a double array (darts-clone), the texts it leads to, which end with 0, ByteTable of Grapheme}.
    const char *open(const File &file, uint64_t section);
    // Appends the normalized text. The first character is dropped for none: what follows has its place, and `moved`
    // stays as it is.
    [[nodiscard]] bool normalize(Span text, Text &to, bool &moved) const;

private:
    static constexpr size_t LONGEST = 6;
    bool find(Span key, Span &found) const;
    bool text_at(size_t at, Span &found) const;
    [[nodiscard]] bool each_character(Span cluster, Text &to) const;

    View<uint32_t> units_;
    View<char> texts_;
    ByteTable classes_;
    bool plain_[128] = {};  // a character that alone, as clusters of ASCII are, stays what it is
};

}  // namespace hfx
