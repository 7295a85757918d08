#include "answer.h"
#include "refusals.h"
#include "scores.h"

namespace hfx {
namespace {

constexpr int64_t MOST = INT32_MAX;

constexpr float NORM_FLOOR = 1e-12f;  // as in torch.nn.functional.normalize

// Sets `count` to the value that a setting has in all rows; `count` stays if the setting is left out. Returns false if
// rows differ, because an output has one shape for all rows, or if a value is below 1.
bool agreed(const char *name, const Array<int32_t> &values, size_t &count, Text &refusal) {
    for (int32_t each : values) {
        if (each != values[0]) return refuse(refusal, DIFFERS_BETWEEN_ROWS, name);
        if (each < 1) return refuse(refusal, IS_BELOW_ONE, name, long(each));
        count = size_t(each);
    }
    return true;
}

bool one_a_row(const char *name, const Array<uint8_t> &values, size_t rows, Text &refusal) {
    if (values.empty() || values.size() == rows) return true;
    return refuse(refusal, "%s must hold one value a row, not the shape [%zu, 1]", name, values.size());
}

bool append_float(Output &output, float value) {
    return output.content.append(reinterpret_cast<const char *>(&value), sizeof value);
}

}  // namespace

const char *Answer::open(const Json &settings) {
    int64_t top_k = 0;
    if (!task_named(settings["task"].text(), task_) || task_ == Task::FEATURE_EXTRACTION)
        return "task has no answering step";
    bool classes = task_ == Task::TEXT_CLASSIFICATION;
    Json given = settings["default_top_k"];
    if (!given && classes) top_k = 1;
    else if (given && !given.is_null() && !given.integer(top_k, 1, MOST)) return "default_top_k is no number";
    default_top_k_ = size_t(top_k);
    if (task_ == Task::ZERO_SHOT_CLASSIFICATION) {
        bool both = settings["entailment"].integer(entailment_, 0, MOST) &&
                    settings["contradiction"].integer(contradiction_, -1, MOST);
        return both ? nullptr : "entailment and contradiction are no classes";
    }
    const char *wrong = classes ? open_labels(settings["labels"]) : nullptr;
    return wrong ? wrong : open_activation(settings);
}

const char *Answer::open_labels(const Json &labels) {
    labels_.clear(), ends_.clear();
    if (!labels.size()) return "labels is no list of texts";
    if (!ends_.push(0)) return NO_MEMORY;
    for (Json each = labels.first(); each; each = each.next()) {
        if (each.kind() != Json::STRING) return "labels is no list of texts";
        if (!append(labels_, each.text()) || !ends_.push(labels_.size())) return NO_MEMORY;
    }
    return nullptr;
}

const char *Answer::open_activation(const Json &settings) {
    Span name = settings["activation"].text();
    if (name.equals("softmax")) activation_ = Activation::SOFTMAX;
    else if (name.equals("sigmoid")) activation_ = Activation::SIGMOID;
    else if (name.equals("none")) activation_ = Activation::NONE;
    else return "activation is none of softmax, sigmoid, none";
    return nullptr;
}

// Returns false if the net's logits don't match the settings, or if the request's tensors don't match each other.
bool Answer::fits(const Inputs &inputs, const Logits &logits, Text &refusal) const {
    size_t rows = inputs.rows, classes = logits.classes;
    if (logits.rows != rows) return refuse(refusal, "the net has answered %zu of %zu rows", logits.rows, rows);
    if (task_ == Task::TEXT_RANKING && !one_a_row("raw_scores", inputs.raw_scores, rows, refusal)) return false;
    if (task_ != Task::ZERO_SHOT_CLASSIFICATION) {
        size_t expected = this->classes(), found = (logits.windows ? 1 : logits.sequences) * classes;
        return found == expected || refuse(refusal, "the net has %zu classes, not %zu", found, expected);
    }
    if (inputs.label_count > logits.sequences || inputs.labels.size() != rows * inputs.label_count)
        return refuse(refusal, "candidate_labels has the shape [%zu, %zu], not [%zu, %zu]", rows, inputs.label_count,
                      logits.rows, logits.sequences);
    if (size_t(entailment_) >= classes || contradiction(classes) >= classes)
        return refuse(refusal, "the net has %zu classes, which are too few", classes);
    return true;
}

bool Answer::answer(const Inputs &inputs, const Logits &logits, Outputs &outputs, Text &refusal) const {
    refusal.clear();
    if (!fits(inputs, logits, refusal)) return false;
    if (task_ == Task::TEXT_RANKING) return rate(inputs, logits, outputs);
    bool nested = task_ == Task::ZERO_SHOT_CLASSIFICATION;
    size_t available = nested ? inputs.label_count : logits.classes, count = default_top_k_ ? default_top_k_ : available;
    if (!agreed("top_k", inputs.top_k, count, refusal)) return false;
    count = count < available ? count : available;
    if (nested && available != 1 && !one_a_row("multi_label", inputs.multi_label, inputs.rows, refusal)) return false;
    Output *names = outputs.add("label", Output::STRINGS, inputs.rows, count);
    Output *values = names ? outputs.add("score", Output::FLOATS, inputs.rows, count) : nullptr;
    Array<float> scores;
    Array<uint32_t> places;
    if (!values || !scores.resize(available)) return false;
    for (size_t row = 0; row < inputs.rows; row++) {
        bool alone = available == 1 || (!inputs.multi_label.empty() && inputs.multi_label[row]);
        bool largest = !inputs.longs.empty() && inputs.longs[row].equals("max");
        if (!score(logits.data + row * logits.sequences * logits.classes, logits, alone, scores)) return false;
        if (logits.windows && !merge(logits, row, largest, scores)) return false;
        if (!order(scores, count, places)) return false;
        for (size_t i = 0; i < count; i++) {
            Span name = nested ? inputs.labels[row * available + places[i]] : label(places[i]);
            if (!append_string(names->content, name) || !append_float(*values, scores[places[i]])) return false;
        }
    }
    return true;
}

// Computes the scores of a row's labels. For zero-shot-classification, a score is that of a label's entailment against
// its contradiction (`alone`), or the label's share of the entailment of all labels.
bool Answer::score(const float *logits, const Logits &shape, bool alone, Array<float> &scores) const {
    size_t count = scores.size(), classes = shape.classes;
    if (task_ == Task::TEXT_CLASSIFICATION) {
        memcpy(scores.data(), logits, count * sizeof(float));
        activate(scores.data(), count);
        return true;
    }
    for (size_t i = 0; i < count; i++) scores[i] = logits[i * classes + size_t(entailment_)];
    if (!alone) return shares(scores.data(), 1, count);
    Array<float> pairs;
    for (size_t i = 0; i < count; i++)
        if (!pairs.push(logits[i * classes + contradiction(classes)]) || !pairs.push(scores[i])) return false;
    if (!shares(pairs.data(), count, 2)) return false;
    for (size_t i = 0; i < count; i++) scores[i] = pairs[2 * i + 1];
    return true;
}

// Adds the other windows of a text to `scores`, which has those of the first one: the largest score of each label, or the
// mean, weighted by the windows' tokens.
bool Answer::merge(const Logits &logits, size_t row, bool largest, Array<float> &scores) const {
    const int32_t *tokens = logits.windows + row * logits.sequences;
    if (logits.sequences == 1 || !tokens[1]) return true;
    Array<float> other;
    Array<double> sums;
    double all = tokens[0];
    if (!other.resize(scores.size()) || !sums.resize(scores.size())) return false;
    for (size_t i = 0; i < scores.size(); i++) sums[i] = double(scores[i]) * tokens[0];
    for (size_t at = 1; at < logits.sequences && tokens[at]; at++) {
        if (!score(logits.data + (row * logits.sequences + at) * logits.classes, logits, true, other)) return false;
        all += tokens[at];
        for (size_t i = 0; i < scores.size(); i++) {
            sums[i] += double(other[i]) * tokens[at];
            if (!(other[i] <= scores[i]) && scores[i] == scores[i]) scores[i] = other[i];
        }
    }
    for (size_t i = 0; i < scores.size(); i++) scores[i] = largest ? scores[i] + 0.0f : float(sums[i] / all);
    return true;
}

// Finds the places of a row's `count` best scores.
bool Answer::order(const Array<float> &scores, size_t count, Array<uint32_t> &places) const {
    bool nested = task_ == Task::ZERO_SHOT_CLASSIFICATION;
    if (nested || count != 1) return rank(scores.data(), scores.size(), nested, places);
    places.clear();
    return places.push(uint32_t(best(scores.data(), scores.size())));
}

void Answer::activate(float *scores, size_t count) const {
    if (activation_ == Activation::SOFTMAX) softmax(scores, count);
    if (activation_ == Activation::SIGMOID) sigmoid(scores, count);
}

bool Answer::rate(const Inputs &inputs, const Logits &logits, Outputs &outputs) const {
    Output *values = outputs.add("score", Output::FLOATS, inputs.rows, 1);
    for (size_t row = 0; values && row < inputs.rows; row++) {
        float score = logits.data[row];
        if (inputs.raw_scores.empty() || !inputs.raw_scores[row]) activate(&score, 1);
        if (!append_float(*values, score)) return false;
    }
    return values;
}

bool embed(const Inputs &inputs, const Logits &vectors, const char *name, Outputs &outputs, Text &refusal) {
    size_t width = vectors.classes, count = width;
    refusal.clear();
    if (!agreed("dimensions", inputs.dimensions, count, refusal)) return false;
    if (count > width) return refuse(refusal, HAS_OTHER_DIMENSIONS, count, width);
    Output *output = outputs.add(name, Output::FLOATS, vectors.rows, count);
    if (!output) return false;
    if (count == width) return output->content.append(reinterpret_cast<const char *>(vectors.data), 4 * vectors.rows * width);
    Array<float> squares;
    if (!squares.resize(count)) return false;
    for (size_t row = 0; row < vectors.rows; row++) {
        const float *vector = vectors.data + row * width;
        for (size_t i = 0; i < count; i++) squares[i] = vector[i] * vector[i];
        float norm = __builtin_sqrtf(sum(squares.data(), count));
        if (norm < NORM_FLOOR) norm = NORM_FLOOR;
        for (size_t i = 0; i < count; i++)
            if (!append_float(*output, vector[i] / norm)) return false;
    }
    return true;
}

}  // namespace hfx
