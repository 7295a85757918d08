// Characters of UTF-8 that is known to be valid. Invalid UTF-8 is decoded to arbitrary code points, but never read past
// its end.
#pragma once
#include "../memory.h"

namespace hfx {

// Reads the code point at `at`, which is before `end`; returns its number of bytes.
inline size_t decode(const char *at, const char *end, uint32_t &code) {
    uint8_t first = uint8_t(*at);
    code = first;
    if (first < 0x80) return 1;
    size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (size_t(end - at) < bytes) return 1;
    code = first & (0x7f >> bytes);
    for (size_t next = 1; next < bytes; next++) code = code << 6 | (uint8_t(at[next]) & 0x3f);
    return bytes;
}

// Reads the code point that ends at `end`, which is behind `begin`; returns its number of bytes.
inline size_t decode_last(const char *begin, const char *end, uint32_t &code) {
    const char *at = end - 1;
    while (at > begin && end - at < 4 && (*at & 0xc0) == 0x80) at--;
    decode(at, end, code);
    return size_t(end - at);
}

// Writes `code` to `to`, which has room for four bytes; returns its number of bytes.
inline size_t encode(uint32_t code, char *to) {
    if (code < 0x80) return to[0] = char(code), 1;
    size_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t at = bytes; --at; code >>= 6) to[at] = char(0x80 | (code & 0x3f));
    to[0] = char((0xf00 >> bytes & 0xf0) | code);
    return bytes;
}

[[nodiscard]] inline bool append(Text &to, uint32_t code) {
    char bytes[4];
    return to.append(bytes, encode(code, bytes));
}

// Where and why a text is not UTF-8, in the words of CPython's UnicodeDecodeError; `reason` is null if the text is
// UTF-8.
struct Utf8Error {
    const char *reason = nullptr;
    size_t at = 0;
};
Utf8Error utf8_error(Span text);

}  // namespace hfx
