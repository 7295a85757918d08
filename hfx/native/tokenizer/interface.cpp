// The tokenizer's interface in C, for ctypes (hfx/native/tokenizers.py).
#include "tokenizer.h"
#include "utf8.h"

using namespace hfx;

#define EXPORTED extern "C" __attribute__((visibility("default")))

static void copy_error(const char *error, char *to, size_t size) {
    if (!size) return;
    size_t length = strlen(error);
    length = length < size ? length : size - 1;
    memcpy(to, error, length);
    to[length] = 0;
}

// Opens the tokenizer of a file. Returns null if it can't be used, with the reason in `error`.
EXPORTED void *hfx_tokenizer_open(const char *path, char *error, size_t size) {
    Tokenizer *tokenizer = make<Tokenizer>();
    const char *wrong = tokenizer ? tokenizer->open(path) : "there is no memory";
    if (!wrong) return tokenizer;
    copy_error(wrong, error, size);
    destroy(tokenizer);
    return nullptr;
}

EXPORTED void hfx_tokenizer_close(void *tokenizer) { destroy(static_cast<Tokenizer *>(tokenizer)); }

// Encodes `count` texts, which follow each other in `text`; text n ends at ends[n]. Writes at most `room` of their
// tokens, and to `counts` the number of tokens of each text. Returns the number of all tokens; -1 if there is no
// memory, -2 if a text is not UTF-8.
EXPORTED int64_t hfx_tokenizer_encode(
    const void *tokenizer, const char *text, const uint64_t *ends, size_t count, int32_t *ids, uint32_t *words, size_t room,
    uint32_t *counts
) {
    Array<Token> tokens;
    uint64_t from = 0, total = 0;
    for (size_t n = 0; n < count; from = ends[n++]) {
        Span one{text + from, size_t(ends[n] - from)};
        tokens.clear();
        if (utf8_error(one).reason) return -2;
        if (!static_cast<const Tokenizer *>(tokenizer)->encode(one, tokens)) return -1;
        for (size_t at = 0; at < tokens.size() && total + at < room; at++)
            ids[total + at] = tokens[at].id, words[total + at] = tokens[at].word;
        total += counts[n] = uint32_t(tokens.size());
    }
    return int64_t(total);
}

// Writes at most `room` bytes of a token's text, and returns the size of the whole text.
EXPORTED int64_t hfx_tokenizer_token(const void *tokenizer, int32_t id, char *to, size_t room) {
    Span token = static_cast<const Tokenizer *>(tokenizer)->token(id);
    if (token.size) memcpy(to, token.data, token.size < room ? token.size : room);
    return int64_t(token.size);
}

// Writes the special tokens of one text (`two` is 0) or of two: at most `room` of their ids and types, and their counts
// before, between and behind the texts; also the types of the first and of the second text. Returns the number of
// special tokens.
EXPORTED int64_t hfx_tokenizer_template(
    const void *tokenizer, int two, int32_t *ids, int32_t *types, size_t room, uint32_t *counts, int32_t *text_types
) {
    auto *opened = static_cast<const Tokenizer *>(tokenizer);
    const Template &made = two ? opened->pair : opened->single;
    const Template::Part parts[] = {made.begin, made.middle, made.end};
    size_t total = 0;
    for (int part = 0; part < 3; part++) {
        counts[part] = uint32_t(parts[part].count);
        for (size_t at = 0; at < parts[part].count && total < room; at++, total++)
            ids[total] = parts[part].ids[at], types[total] = parts[part].types[at];
    }
    text_types[0] = made.first_type, text_types[1] = made.second_type;
    return int64_t(made.special_tokens());
}
