#include "precompiled.h"
#include "graphemes.h"
#include "utf8.h"

namespace hfx {

namespace {
// A unit of darts-clone: a byte, whether a text ends behind it, and the distance to what follows.
bool has_byte(uint32_t unit, uint8_t byte) { return (unit & 0x800000ff) == byte; }
bool has_end(uint32_t unit) { return unit & 0x100; }
uint32_t distance(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
}  // namespace

const char *Precompiled::open(const File &file, uint64_t section) {
    bool read = file.read(section, units_) && file.read(section + 1, texts_) && classes_.open(file, section + 2);
    if (!read || !units_.count || utf8_error({texts_.data, texts_.count}).reason) return "its table of characters is damaged";
    for (int code = 0; code < 128; code++) {
        char character = char(code);
        Span found;
        plain_[code] = code != '\r' && !find({&character, 1}, found);
    }
    return nullptr;
}

bool Precompiled::find(Span key, Span &found) const {
    uint32_t at = distance(units_[0]);
    for (size_t n = 0; n < key.size && key.data[n]; n++) {
        uint8_t byte = uint8_t(key.data[n]);
        at ^= byte;
        if (at >= units_.count || !has_byte(units_[at], byte)) return false;
        uint32_t unit = units_[at];
        at ^= distance(unit);
        if (has_end(unit)) return at < units_.count && text_at(units_[at] & 0x7fffffff, found);
    }
    return false;
}

// Finds the text at a place of `texts_`. Returns false if no character begins there.
bool Precompiled::text_at(size_t at, Span &found) const {
    if (at > texts_.count || (at < texts_.count && (texts_[at] & 0xc0) == 0x80)) return false;
    size_t end = at;
    while (end < texts_.count && texts_[end]) end++;
    found = {texts_.data + at, end - at};
    return true;
}

bool Precompiled::each_character(Span cluster, Text &to) const {
    const char *at = cluster.data, *end = at + cluster.size;
    while (at < end) {
        uint32_t code;
        Span character{at, decode(at, end, code)}, found;
        if (!append(to, find(character, found) ? found : character)) return false;
        at += character.size;
    }
    return true;
}

bool Precompiled::normalize(Span text, Text &to, bool &) const {
    const char *at = text.data, *end = at + text.size;
    auto plain = [&](const char *place) { return !(*place & 0x80) && plain_[int(*place)]; };
    while (at < end) {
        const char *from = at;
        // An ASCII character before another one, or at the end, is a cluster.
        while (at < end && plain(at) && (at + 1 == end || !(at[1] & 0x80))) at++;
        if (!to.append(from, size_t(at - from))) return false;
        if (at == end) break;
        Span cluster{at, size_t(grapheme_end(classes_, at, end) - at)}, found;
        bool whole = cluster.size < LONGEST && find(cluster, found);
        if (!(whole ? append(to, found) : each_character(cluster, to))) return false;
        at += cluster.size;
    }
    return true;
}

}  // namespace hfx
