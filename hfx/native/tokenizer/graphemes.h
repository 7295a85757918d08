// Extended grapheme clusters (Unicode Standard Annex #29), as the crate unicode-segmentation finds them in tokenizers.
#pragma once
#include "tables.h"

namespace hfx {

// What a code point is to the rules. Regional indicators are not among them: this is for clusters of fewer than six
// bytes, and one that has such a character of four bytes and another has more.
enum Grapheme : uint8_t {
    OTHER, CONTROL, CARRIAGE_RETURN, LINE_FEED, EXTEND, JOINER, SPACING_MARK, PREPEND, LEADING, VOWEL, TRAILING,
    SYLLABLE, CLOSED_SYLLABLE, PICTOGRAPH, CONSONANT,
    CLASS = 15,
    CONJUNCT_EXTEND = 16, CONJUNCT_LINKER = 32,  // beside a class, of Indic_Conjunct_Break
};

// Where the cluster ends that begins at `at`, which is before `end`.
const char *grapheme_end(const ByteTable &classes, const char *at, const char *end);

}  // namespace hfx
