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

    // Whether the text of a row is read in windows if it is long. `inputs` may lack settings that are parameters.
    bool has_windows(const Inputs &inputs, size_t row) const { return reading(inputs, row) == Long::WINDOWS; }

    Settings settings;

private:
    struct Part;
    struct Work;
    enum class Long : uint8_t { CUT, REFUSED, WINDOWS };  // what is done with a long text
    bool check(const Inputs &inputs, Text &refusal) const;
    bool check_prompts(const Inputs &inputs, Text &refusal) const;
    bool check_reading(const Inputs &inputs, Text &refusal) const;
    Long reading(const Inputs &inputs, size_t row) const;
    Span prompt(const Inputs &inputs, size_t row) const;
    bool text_row(const Inputs &inputs, size_t row, Work &work, Text &refusal) const;
    bool window_row(Span text, const Inputs &inputs, size_t row, Work &work, Text &refusal) const;
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
    void copy(const Work &work, size_t sequence, size_t to, Tokens &tokens) const;

    const Tokenizer *tokenizer_ = nullptr;
    const Template *template_ = nullptr;
    size_t room_ = 0;  // the most tokens of a sequence besides the special tokens
};

}  // namespace hfx
