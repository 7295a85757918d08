#include "graphemes.h"
#include "utf8.h"

namespace hfx {

namespace {

// What the rules use of the characters of a cluster so far.
struct Before {
    uint8_t last = OTHER;
    bool pictograph = false;  // GB11: the last are a pictograph, what extends it, and at most one joiner
    bool consonant = false, linker = false;  // GB9c: the last are a consonant and what extends it; with a linker

    void add(uint8_t value) {
        uint8_t added = value & CLASS;
        pictograph = added == PICTOGRAPH || (pictograph && last != JOINER && (added == EXTEND || added == JOINER));
        bool extends = value & (CONJUNCT_EXTEND | CONJUNCT_LINKER);
        linker = consonant && extends && (linker || value & CONJUNCT_LINKER);
        consonant = added == CONSONANT || (consonant && extends);
        last = added;
    }
};

bool hangul(uint8_t before, uint8_t after) {
    switch (before) {
    case LEADING: return after >= LEADING && after <= CLOSED_SYLLABLE && after != TRAILING;
    case VOWEL:
    case SYLLABLE: return after == VOWEL || after == TRAILING;
    case TRAILING:
    case CLOSED_SYLLABLE: return after == TRAILING;
    default: return false;
    }
}

bool is_control(uint8_t value) { return value >= CONTROL && value <= LINE_FEED; }

bool joins(const Before &before, uint8_t after) {
    if (before.last == CARRIAGE_RETURN && after == LINE_FEED) return true;
    if (is_control(before.last) || is_control(after)) return false;
    if ((after >= EXTEND && after <= SPACING_MARK) || before.last == PREPEND) return true;
    if (after == CONSONANT) return before.linker;
    if (after == PICTOGRAPH) return before.last == JOINER && before.pictograph;
    return hangul(before.last, after);
}

}  // namespace

const char *grapheme_end(const ByteTable &classes, const char *at, const char *end) {
    Before before;
    uint32_t code;
    at += decode(at, end, code);
    before.add(classes[code]);
    while (at < end) {
        size_t bytes = decode(at, end, code);
        uint8_t value = classes[code];
        if (!joins(before, value & CLASS)) break;
        before.add(value);
        at += bytes;
    }
    return at;
}

}  // namespace hfx
