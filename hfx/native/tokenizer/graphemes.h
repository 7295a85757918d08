// Extended grapheme clusters (Unicode Standard Annex #29), as tokenizers finds them with the crate
// unicode-segmentation.
#pragma once
#include "tables.h"

namespace hfx {

// The classes of code points in the rules. Regional indicators have no class: only clusters of fewer than six bytes
// matter here, and a cluster with one regional indicator, which has four bytes, and another one has more.
enum Grapheme : uint8_t {
    OTHER, CONTROL, CARRIAGE_RETURN, LINE_FEED, EXTEND, JOINER, SPACING_MARK, PREPEND, LEADING, VOWEL, TRAILING,
    SYLLABLE, CLOSED_SYLLABLE, PICTOGRAPH, CONSONANT,
    CLASS = 15,
    CONJUNCT_EXTEND = 16, CONJUNCT_LINKER = 32,  // added to a class: values of Indic_Conjunct_Break
};

// Returns the end of the cluster that begins at `at`, which is before `end`.
const char *grapheme_end(const ByteTable &classes, const char *at, const char *end);

}  // namespace hfx
