#include "gpt2_pattern.h"
#include "utf8.h"

namespace hfx {

namespace {

// Skips the characters of a class from `at` on.
const char *run(const ByteTable &classes, uint8_t of, const char *at, const char *end) {
    while (at < end) {
        uint32_t code;
        size_t bytes = decode(at, end, code);
        if (classes[code] != of) break;
        at += bytes;
    }
    return at;
}

const char *contraction(const char *at, const char *end) {
    if (*at != '\'' || end - at < 2) return at;
    char first = at[1], second = end - at > 2 ? at[2] : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
    return two ? at + 3 : at;
}

// \s+(?!\S)|\s+ : all white space at the end of a text; elsewhere all but the last character, or a single character.
const char *spaces(const ByteTable &classes, const char *at, const char *end) {
    const char *behind = run(classes, SPACE, at, end);
    if (behind == end) return end;
    uint32_t code;
    const char *last = behind - decode_last(at, behind, code);
    return last > at ? last : behind;
}

}  // namespace

const char *end_of_piece(const ByteTable &classes, const char *at, const char *end) {
    const char *behind = contraction(at, end);
    if (behind > at) return behind;
    const char *first = *at == ' ' && end - at > 1 ? at + 1 : at;
    uint32_t code;
    decode(first, end, code);
    uint8_t of = classes[code];
    return of == SPACE ? spaces(classes, at, end) : run(classes, of, first, end);
}

}  // namespace hfx
