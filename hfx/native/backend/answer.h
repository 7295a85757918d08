// Turns the net's logits into a request's answer, equal in every bit to the answer of the Python steps of
// text-classification, text-ranking and zero-shot-classification.
#pragma once
#include "json.h"
#include "rows.h"

namespace hfx {

// [rows, sequences, classes]; `sequences` is 1 for tasks with one sequence a row. `windows` [rows, sequences] has the
// tokens of each window (0: the row has none); null if the sequences are no windows.
struct Logits {
    const float *data = nullptr;
    size_t rows = 0, sequences = 1, classes = 0;
    const int32_t *windows = nullptr;
};

// An open Answer is only read, so any number of threads may use it at once.
class Answer {
public:
    // Reads the settings.json of the answering step (answer.json). Returns an error message, or null.
    [[nodiscard]] const char *open(const Json &settings);

    // Adds the outputs label STRING [rows, k] and score FP32 [rows, k], best first (text-ranking: only score
    // [rows, 1]). Returns false with the reason in `refusal`, which is empty if there is no memory.
    [[nodiscard]] bool answer(const Inputs &inputs, const Logits &logits, Outputs &outputs, Text &refusal) const;

    // The number of the net's logits that are read; 0 for zero-shot-classification, where the settings name them.
    size_t classes() const { return task_ == Task::TEXT_CLASSIFICATION ? ends_.size() - 1 : task_ == Task::TEXT_RANKING; }

private:
    enum class Activation : uint8_t { SOFTMAX, SIGMOID, NONE };

    const char *open_labels(const Json &labels);
    const char *open_activation(const Json &settings);
    bool fits(const Inputs &inputs, const Logits &logits, Text &refusal) const;
    bool score(const float *logits, const Logits &shape, bool alone, Array<float> &scores) const;
    bool merge(const Logits &logits, size_t row, bool largest, Array<float> &scores) const;
    bool order(const Array<float> &scores, size_t count, Array<uint32_t> &places) const;
    void activate(float *scores, size_t count) const;
    Span label(size_t at) const { return {labels_.data() + ends_[at], ends_[at + 1] - ends_[at]}; }
    bool rate(const Inputs &inputs, const Logits &logits, Outputs &outputs) const;
    size_t contradiction(size_t classes) const { return contradiction_ < 0 ? classes - 1 : size_t(contradiction_); }

    Task task_ = Task::TEXT_CLASSIFICATION;
    Activation activation_ = Activation::NONE;
    Text labels_;
    Array<size_t> ends_;        // label i is from ends_[i] to ends_[i + 1]
    size_t default_top_k_ = 0;  // 0: all
    int64_t entailment_ = 0, contradiction_ = 0;  // classes; -1 is the last one
};

// For feature-extraction, adds the output `name`: the `vectors` [rows, classes], or the first `dimensions` numbers of
// each vector, scaled to length 1.
[[nodiscard]] bool embed(const Inputs &inputs, const Logits &vectors, const char *name, Outputs &outputs, Text &refusal);

}  // namespace hfx
