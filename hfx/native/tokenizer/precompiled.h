// SentencePiece's table of characters (precompiled_charsmap), as tokenizers' Precompiled reads it. A cluster of fewer
// than six bytes becomes the table's text for its shortest beginning that the table has. Without such a text, each
// character of the cluster becomes the table's text for that character.
#pragma once
#include "tables.h"

namespace hfx {

class Precompiled {
public:
    // Sections {units of a double array (darts-clone), the texts that it leads to, which end with 0, ByteTable of
    // Grapheme}. Returns an error message, or null.
    const char *open(const File &file, uint64_t section);
    // Appends the normalized text. `moved` does not change: if the first character is dropped, what follows takes its
    // place. Returns false if there is no memory.
    [[nodiscard]] bool normalize(Span text, Text &to, bool &moved) const;

private:
    static constexpr size_t LONGEST = 6;
    bool find(Span key, Span &found) const;
    bool text_at(size_t at, Span &found) const;
    [[nodiscard]] bool each_character(Span cluster, Text &to) const;

    View<uint32_t> units_;
    View<char> texts_;
    ByteTable classes_;
    bool plain_[128] = {};  // ASCII characters that do not change when they are a cluster by themselves
};

}  // namespace hfx
