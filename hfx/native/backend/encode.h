// From the texts of a request to the net's inputs: what the Python steps of text-classification, feature-extraction,
// text-ranking and zero-shot-classification make of them, token ids and refusals.
#pragma once
#include "pieces.h"
#include "settings.h"

namespace hfx {

// Read only once it is open: any number of threads may use it at once.
class Encoder {
public:
    // By the settings.json of the tokenizing step; the tokenizer must outlive it. Returns what is wrong, else null.
    [[nodiscard]] const char *open(const Json &settings, const Tokenizer &tokenizer);

    // False: `refusal` says why, or there is no memory where it is empty.
    [[nodiscard]] bool encode(const Inputs &inputs, Tokens &tokens, Text &refusal) const;

    Settings settings;

private:
    struct Part;
    struct Work;
    bool check(const Inputs &inputs, Text &refusal) const;
    bool check_prompts(const Inputs &inputs, Text &refusal) const;
    Span prompt(const Inputs &inputs, size_t row) const;
    bool text_row(Span prompt, Span text, Work &work, Text &refusal) const;
    bool pair_row(Span prompt, Span query, Span text, Work &work, Text &refusal) const;
    bool prompt_tokens(Span prompt, Work &work, size_t &count, Text &refusal) const;
    bool label_row(Span text, const Span *labels, size_t count, Work &work, Text &refusal) const;
    bool hypotheses(const Span *labels, size_t count, Work &work, Text &refusal) const;
    bool premise(Span raw, Work &work, Piece &piece, Text &refusal) const;
    bool tokenize(Span text, Array<Token> &tokens) const;
    Part kept(const Array<Token> &tokens, size_t count) const;
    bool add(const Part &first, const Part *second, const char *field, Work &work, Text &refusal) const;
    bool embedded(const int32_t *ids, size_t count, const char *field, Text &refusal) const;
    bool pad(const Work &work, Tokens &tokens) const;

    const Tokenizer *tokenizer_ = nullptr;
    const Template *template_ = nullptr;
    size_t room_ = 0;  // tokens of a sequence beside the special ones
};

}  // namespace hfx
