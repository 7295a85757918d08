#include "pieces.h"
#include "../tokenizer/utf8.h"

namespace hfx {
namespace {

bool continues(char byte) { return (byte & 0xc0) == 0x80; }

// Whether str.isspace is true for a character (CPython's _PyUnicode_IsWhitespace).
bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace

bool take_piece(const char *field, Span raw, size_t limit, bool left, Piece &piece, Text &refusal) {
    piece = {raw, raw.size > limit};
    if (piece.cut) {
        size_t at = left ? raw.size - limit : limit;
        // A character has at most three bytes after its first.
        for (int i = 0; i < 3 && at < raw.size && continues(raw.data[at]); i++) left ? at++ : at--;
        piece.text = left ? Span{raw.data + at, raw.size - at} : Span{raw.data, at};
    }
    return is_utf8(field, piece.text, refusal);
}

bool settled(const Array<Token> &tokens, size_t kept, bool left) {
    size_t count = tokens.size();
    if (count <= kept || !kept) return false;
    bool other_word = left ? tokens[0].word < tokens[count - kept].word : tokens[count - 1].word > tokens[kept - 1].word;
    return other_word || count - kept >= MARGIN;
}

bool is_utf8(const char *field, Span raw, Text &refusal) {
    Utf8Error error = utf8_error(raw);
    if (!error.reason) return true;
    unsigned byte = uint8_t(raw.data[error.at]);
    return refuse(refusal, "%s is not UTF-8: %s at byte %zu (0x%02x)", field, error.reason, error.at, byte);
}

bool is_short(const char *field, Span raw, size_t max_tokens, Text &refusal) {
    size_t limit = max_tokens * BYTES_PER_TOKEN[0];
    if (raw.size <= limit) return true;
    return refuse(refusal, HAS_TOO_MANY_BYTES, field, raw.size, limit);
}

bool none_is_huge(const char *field, const Span *texts, size_t count, Text &refusal) {
    size_t longest = 0;
    for (size_t i = 0; i < count; i++) longest = texts[i].size > longest ? texts[i].size : longest;
    if (longest <= LONGEST_TEXT) return true;
    return refuse(refusal, IS_HUGE, field, longest, LONGEST_TEXT);
}

bool is_blank(Span text) {
    uint32_t character;
    for (size_t at = 0; at < text.size;) {
        at += decode(text.data + at, text.data + text.size, character);
        if (!is_space(character)) return false;
    }
    return true;
}

}  // namespace hfx
