// The bytes of well-formed UTF-8: table 3-7 of the Unicode Standard (16.0, 3.9).
#include "utf8.h"

namespace hfx {
namespace {

// The number of bytes of a character that begins with `lead`, and the range of its second byte; 0: there is none.
struct Form {
    unsigned size;
    uint8_t least, most;
};

Form form(uint8_t lead) {
    if (lead < 0x80) return {1, 0, 0};
    if (lead < 0xc2) return {0, 0, 0};
    if (lead < 0xe0) return {2, 0x80, 0xbf};
    if (lead < 0xf0) return {3, uint8_t(lead == 0xe0 ? 0xa0 : 0x80), uint8_t(lead == 0xed ? 0x9f : 0xbf)};
    if (lead < 0xf5) return {4, uint8_t(lead == 0xf0 ? 0x90 : 0x80), uint8_t(lead == 0xf4 ? 0x8f : 0xbf)};
    return {0, 0, 0};
}

// Skips the ASCII characters from `at` on, eight bytes at a time.
size_t past_ascii(Span text, size_t at) {
    for (uint64_t eight; text.size - at >= 8; at += 8) {
        memcpy(&eight, text.data + at, 8);
        if (eight & 0x8080808080808080u) break;
    }
    while (at < text.size && uint8_t(text.data[at]) < 0x80) at++;
    return at;
}

}  // namespace

Utf8Error utf8_error(Span text) {
    for (size_t at = past_ascii(text, 0); at < text.size; at = past_ascii(text, at)) {
        Form expected = form(uint8_t(text.data[at]));
        if (!expected.size) return {"invalid start byte", at};
        for (unsigned i = 1; i < expected.size; i++) {
            if (at + i >= text.size) return {"unexpected end of data", at};
            uint8_t byte = uint8_t(text.data[at + i]);
            bool second = i == 1;
            if (byte < (second ? expected.least : 0x80) || byte > (second ? expected.most : 0xbf))
                return {"invalid continuation byte", at};
        }
        at += expected.size;
    }
    return {};
}

}  // namespace hfx
