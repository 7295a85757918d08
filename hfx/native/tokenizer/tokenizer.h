// A compiled tokenizer. Its token ids are equal to those of Hugging Face's tokenizers for the tokenizer.json that was
// compiled.
#pragma once
#include "../memory.h"

namespace hfx {

// `word` is the number of the pre-tokenizer's piece in the text, from 0 on, like word_ids of tokenizers' encodings.
struct Token {
    int32_t id;
    uint32_t word;
};

// The special tokens of one text, or of two: the tokens before, between and behind the texts, and the type ids of all.
struct Template {
    struct Part {
        const int32_t *ids = nullptr, *types = nullptr;
        size_t count = 0;
    };
    Part begin, middle, end;
    int32_t first_type = 0, second_type = 0;

    size_t special_tokens() const { return begin.count + middle.count + end.count; }
};

// An open tokenizer is only read, so any number of threads may use it at once.
class Tokenizer {
public:
    // Reads the file `path` and checks all of it. Returns an error message, or null.
    const char *open(const char *path);
    bool is_open() const { return parts_; }
    // Whether the file `path` has the bytes of the file that is open.
    bool has_bytes_of(const char *path) const;
    Tokenizer() = default;
    Tokenizer(const Tokenizer &) = delete;
    ~Tokenizer();

    // Appends the tokens of a text, which must be valid UTF-8, without the special tokens of the template. Returns
    // false if there is no memory.
    [[nodiscard]] bool encode(Span text, Array<Token> &tokens) const;
    // The text of a token, as id_to_token of tokenizers returns it; empty if there is no such token.
    Span token(int32_t id) const;

    Template single, pair;

private:
    struct Parts;
    Parts *parts_ = nullptr;
};

}  // namespace hfx
