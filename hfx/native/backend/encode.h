// Turns the texts of a request into the net's inputs. Token ids and refusals are the same as those of the Python steps
// for text-classification, feature-extraction, text-ranking and zero-shot-classification.
#pragma once
#include "pieces.h"
#include "settings.h"

namespace hfx {

// An open Encoder is only read, so any number of threads may use it at once.
class Encoder {
public:
    // Reads the settings.json of the tokenizing step. `tokenizer` must outlive the encoder. Returns an error message,
    // or null.
    [[nodiscard]] const char *open(const Json &settings, const Tokenizer &tokenizer);

    // Returns false with the reason in `refusal`, which is empty if there is no memory.
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
    size_t room_ = 0;  // the most tokens of a sequence besides the special tokens
};

}  // namespace hfx
