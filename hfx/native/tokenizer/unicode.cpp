#include "unicode.h"
#include "utf8.h"

namespace hfx {

namespace {

struct Mark {
    uint32_t code;
    uint8_t order;
};

// Sorts marks by class; marks of the same class keep their order. It is a counting sort, because a text may be nothing
// but marks.
bool sort_marks(Array<Mark> &marks, Array<Mark> &sorted) {
    size_t places[257] = {};
    for (const Mark &mark : marks) places[mark.order + 1]++;
    for (size_t at = 1; at < 257; at++) places[at] += places[at - 1];
    if (!sorted.resize(marks.size())) return false;
    for (const Mark &mark : marks) sorted[places[mark.order]++] = mark;
    return true;
}

bool flush(Array<Mark> &marks, Array<Mark> &sorted, Text &to) {
    bool ordered = true;
    for (size_t at = 1; at < marks.size(); at++) ordered = ordered && marks[at - 1].order <= marks[at].order;
    if (!ordered && !sort_marks(marks, sorted)) return false;
    for (const Mark &mark : ordered ? marks : sorted)
        if (!append(to, mark.code)) return false;
    marks.clear(), sorted.clear();
    return true;
}

// Hangul's syllables are composed of a leading consonant and a vowel, or of such a syllable and a trailing consonant.
constexpr uint32_t SYLLABLE = 0xac00, LEADING = 0x1100, VOWEL = 0x1161, TRAILING = 0x11a7;
constexpr uint32_t LEADINGS = 19, VOWELS = 21, TRAILINGS = 28;

uint32_t composed(View<Composition> compositions, uint32_t first, uint32_t second) {
    if (first - LEADING < LEADINGS && second - VOWEL < VOWELS)
        return SYLLABLE + ((first - LEADING) * VOWELS + second - VOWEL) * TRAILINGS;
    uint32_t syllable = first - SYLLABLE;
    if (syllable < LEADINGS * VOWELS * TRAILINGS && !(syllable % TRAILINGS) && second - TRAILING - 1 < TRAILINGS - 1)
        return first + second - TRAILING;
    size_t low = 0, high = compositions.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const Composition &at = compositions[middle];
        if (at.first == first && at.second == second) return at.composed;
        if (at.first < first || (at.first == first && at.second < second)) low = middle + 1;
        else high = middle;
    }
    return 0;
}

}  // namespace

bool order_marks(const ByteTable &classes, Span text, Text &to) {
    Array<Mark> marks, sorted;
    const char *at = text.data, *end = at + text.size, *from = at;  // from here on, the text is not written yet
    while (at < end) {
        uint32_t code;
        size_t bytes = decode(at, end, code);
        uint8_t order = classes[code];
        if (!order && !marks.empty()) {
            if (!flush(marks, sorted, to)) return false;
            from = at;
        }
        if (order) {
            if (marks.empty() && !to.append(from, size_t(at - from))) return false;
            if (!marks.push({code, order})) return false;
        }
        at += bytes;
    }
    return marks.empty() ? to.append(from, size_t(end - from)) : flush(marks, sorted, to);
}

bool compose(const ByteTable &classes, View<Composition> compositions, Span text, Text &to) {
    Text marks;  // the marks behind `base` that aren't composed with it
    uint32_t base = 0, code;
    uint8_t last = 0;  // the class of the last of these marks
    bool based = false;
    const char *at = text.data, *end = at + text.size;
    while (at < end) {
        at += decode(at, end, code);
        uint8_t order = classes[code];
        if (based && (marks.empty() || last < order)) {
            if (uint32_t one = composed(compositions, base, code)) {
                base = one;
                continue;
            }
        }
        if (order) {
            if (!append(based ? marks : to, code)) return false;
            last = order;
            continue;
        }
        if (based && (!append(to, base) || !append(to, {marks.data(), marks.size()}))) return false;
        marks.clear();
        base = code, based = true, last = 0;
    }
    return !based || (append(to, base) && append(to, {marks.data(), marks.size()}));
}

}  // namespace hfx
