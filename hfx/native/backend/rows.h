// The data of a request on its way from Triton's tensors to the tokenizer, the net and the answer.
#pragma once
#include "../memory.h"

namespace hfx {

// The tasks of encoders that this backend answers; their names are those of settings.json.
enum class Task : uint8_t { TEXT_CLASSIFICATION, FEATURE_EXTRACTION, TEXT_RANKING, ZERO_SHOT_CLASSIFICATION };
bool task_named(Span name, Task &task);  // false: the name is none of these tasks

// A request's inputs, rows first. A setting is empty if the caller left it out.
struct Inputs {
    size_t rows = 0, label_count = 0;
    Array<Span> texts;              // text_input [rows, 1]
    Array<Span> queries;            // query [rows, 1], of text-ranking
    Array<Span> labels;             // candidate_labels [rows, label_count], of zero-shot-classification
    Array<int32_t> top_k, dimensions, stride;  // [rows, 1]
    Array<uint8_t> multi_label, raw_scores;    // [rows, 1]
    Array<Span> prompts, prompt_names, longs;  // prompt, prompt_name and long [rows, 1]
};

// The net's inputs, padded to one width: [rows, sequences, width]. A row has one sequence, or for zero-shot one
// sequence for each label, or one for each window. Rows of fewer windows have sequences of one token of padding.
struct Tokens {
    size_t rows = 0, sequences = 1, width = 0;
    Array<int32_t> ids, mask, types;  // types is empty if the net takes none; mask is 2 for tokens that aren't pooled
    Array<int32_t> truncated;         // [rows]: how many tokens were left out, at least
    Array<int32_t> windows;           // [rows, sequences]: the tokens of each window, 0 for none; empty without windows
};

// An output of the answer, rows first.
struct Output {
    enum Kind { STRINGS, FLOATS, INTS };
    const char *name = nullptr;  // a literal or a name of the model
    Kind kind = FLOATS;
    Array<int64_t> shape;
    Text content;  // in Triton's format: a string is its length in 4 bytes, and its bytes
};

struct Outputs {
    static constexpr size_t MOST = 4;
    Output each[MOST];
    size_t count = 0;

    // Adds an output of two dimensions; returns null if there is no memory, or no place.
    Output *add(const char *name, Output::Kind kind, size_t rows, size_t columns);
};
[[nodiscard]] bool append_string(Text &content, Span string);  // in Triton's format

}  // namespace hfx
