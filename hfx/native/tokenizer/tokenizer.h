// A compiled tokenizer: token ids equal to those of Hugging Face's tokenizers for the tokenizer.json it was made of.
#pragma once
#include "../memory.h"

namespace hfx {

// `word` counts the pre-tokenizer's pieces of a text, from 0 on: the word_ids of tokenizers' encodings.
struct Token {
    int32_t id;
    uint32_t word;
};

// The special tokens of a text, or of two: those before, between (of two) and behind; with them the type ids of each.
struct Template {
    struct Part {
        const int32_t *ids = nullptr, *types = nullptr;
        size_t count = 0;
    };
    Part begin, middle, end;
    int32_t first_type = 0, second_type = 0;

    size_t special_tokens() const { return begin.count + middle.count + end.count; }
};

// Read only once it is open: any number of threads may use it at once.
class Tokenizer {
public:
    // Maps the file `path`, and checks all of it. Returns what is wrong with it, else null.
    const char *open(const char *path);
    Tokenizer() = default;
    Tokenizer(const Tokenizer &) = delete;
    ~Tokenizer();

    // Appends the tokens of a text in valid UTF-8, without special tokens of the template. False: there is no memory.
    [[nodiscard]] bool encode(Span text, Array<Token> &tokens) const;
    // The token itself, as tokenizers' id_to_token gives it; empty where there is none.
    Span token(int32_t id) const;

    Template single, pair;

private:
    struct Parts;
    Parts *parts_ = nullptr;
};

}  // namespace hfx
