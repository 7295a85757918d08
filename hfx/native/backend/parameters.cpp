#include "parameters.h"

namespace hfx {
namespace {

// Triton takes these out of infer requests, but not out of those of the generate endpoint (2.51).
constexpr const char *TRITONS[] = {
    "id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"};
constexpr Span TRITON_PREFIX = {"triton_", 7};
constexpr size_t NAME_LENGTH = 60;  // characters of an unknown name that are shown: it may be as long as a body

bool is_tritons(Span name) {
    for (const char *each : TRITONS)
        if (name.equals(each)) return true;
    return name.size >= TRITON_PREFIX.size && !memcmp(name.data, TRITON_PREFIX.data, TRITON_PREFIX.size);
}

// The settings of tasks, as the table of hfx/python_backends/tasks has them.
struct Setting {
    const char *name;
    Array<int32_t> Inputs::*numbers;  // null: it is one of `flags`
    Array<uint8_t> Inputs::*flags;
    Task task, other;  // that have it

    bool of(Task one) const { return one == task || one == other; }
};
constexpr Setting SETTINGS[] = {
    {"top_k", &Inputs::top_k, nullptr, Task::TEXT_CLASSIFICATION, Task::ZERO_SHOT_CLASSIFICATION},
    {"multi_label", nullptr, &Inputs::multi_label, Task::ZERO_SHOT_CLASSIFICATION, Task::ZERO_SHOT_CLASSIFICATION},
    {"raw_scores", nullptr, &Inputs::raw_scores, Task::TEXT_RANKING, Task::TEXT_RANKING},
};

const Setting *find(Span name, Task task) {
    for (const Setting &each : SETTINGS)
        if (each.of(task) && name.equals(each.name)) return &each;
    return nullptr;
}

bool refuse_unknown(Span name, Task task, Text &refusal) {
    size_t end = 0, characters = 0;
    for (; end < name.size; end++)
        if ((name.data[end] & 0xc0) != 0x80 && characters++ == NAME_LENGTH) break;
    bool appended = append(refusal, {name.data, end}) && append(refusal, " is no parameter of this model; ");
    const char *before = "its parameters are ";
    for (const Setting &each : SETTINGS) {
        if (!each.of(task)) continue;
        appended = appended && append(refusal, before) && append(refusal, each.name);
        before = ", ";
    }
    if (task == Task::FEATURE_EXTRACTION) appended = appended && append(refusal, "it takes none");
    if (!appended) refusal.clear();
    return false;
}

bool check_kind(const Setting &setting, Parameter::Kind kind, Text &refusal) {
    if (kind == (setting.numbers ? Parameter::INT : Parameter::BOOL)) return true;
    const char *allowed = setting.numbers ? "a whole number" : "true or false";
    return refuse(refusal, "%s has another type; allowed: %s", setting.name, allowed);
}

template <typename Value> bool set(Array<Value> &tensor, Value value, size_t rows, bool &agrees) {
    if (tensor.empty()) return tensor.resize(rows, value);
    for (Value each : tensor) agrees = agrees && each == value;
    return true;
}

bool refuse_below_one(const char *name, int64_t least, Text &refusal) {
    return least >= 1 || refuse(refusal, "%s must be at least 1, not %lld", name, (long long)least);
}

bool apply(const Setting &setting, int64_t value, Inputs &inputs, Text &refusal) {
    constexpr const char *OTHERWISE = ", but its tensor says otherwise: send one of them";
    bool agrees = true;
    if (setting.flags) {
        if (!set(inputs.*setting.flags, uint8_t(value != 0), inputs.rows, agrees)) return false;
        return agrees || refuse(refusal, "%s is %s%s", setting.name, value ? "True" : "False", OTHERWISE);
    }
    if (!refuse_below_one(setting.name, value, refusal)) return false;
    int32_t bounded = value < INT32_MAX ? int32_t(value) : INT32_MAX;
    if (!set(inputs.*setting.numbers, bounded, inputs.rows, agrees)) return false;
    return agrees || refuse(refusal, "%s is %lld%s", setting.name, (long long)value, OTHERWISE);
}

}  // namespace

bool check_inputs(Task task, const Inputs &inputs, Text &refusal) {
    refusal.clear();
    if (task == Task::TEXT_RANKING && inputs.queries.empty()) return refuse(refusal, "query is missing");
    if (inputs.texts.empty()) return refuse(refusal, "text_input is missing");
    int32_t least = 1;
    for (int32_t each : inputs.top_k) least = each < least ? each : least;
    return refuse_below_one("top_k", least, refusal);
}

bool apply_parameters(Task task, const Parameter *parameters, size_t count, Inputs &inputs, Text &refusal) {
    refusal.clear();
    for (size_t i = 0; i < count; i++) {
        if (is_tritons(parameters[i].name)) continue;
        const Setting *setting = find(parameters[i].name, task);
        if (!setting) return refuse_unknown(parameters[i].name, task, refusal);
        if (!check_kind(*setting, parameters[i].kind, refusal)) return false;
    }
    for (size_t i = 0; i < count; i++) {
        const Setting *setting = is_tritons(parameters[i].name) ? nullptr : find(parameters[i].name, task);
        if (setting && !apply(*setting, parameters[i].number, inputs, refusal)) return false;
    }
    return true;
}

}  // namespace hfx
