#include "parameters.h"
#include <stdio.h>

namespace hfx {
namespace {

// Triton removes these parameters from infer requests, but not from requests of the generate endpoint (2.51).
constexpr const char *TRITONS[] = {
    "id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"};
constexpr Span TRITON_PREFIX = {"triton_", 7};

bool is_tritons(Span name) {
    for (const char *each : TRITONS)
        if (name.equals(each)) return true;
    return name.size >= TRITON_PREFIX.size && !memcmp(name.data, TRITON_PREFIX.data, TRITON_PREFIX.size);
}

// A setting of one or more tasks. SETTINGS has all of them, in the order of the table in hfx/python_backends/tasks.
struct Setting {
    const char *name;
    Parameter::Kind kind;
    const char *allowed;
    Array<int32_t> Inputs::*numbers = nullptr;  // one of these three is set, by `kind`
    Array<uint8_t> Inputs::*flags = nullptr;
    Array<Span> Inputs::*texts = nullptr;
    bool from_one = true;  // a smaller number is refused here
};
constexpr Setting number(const char *name, Array<int32_t> Inputs::*tensor, bool from_one = true) {
    return {name, Parameter::INT, "a whole number", tensor, nullptr, nullptr, from_one};
}
constexpr Setting flag(const char *name, Array<uint8_t> Inputs::*tensor) {
    return {name, Parameter::BOOL, "true or false", nullptr, tensor, nullptr};
}
constexpr Setting text(const char *name, Array<Span> Inputs::*tensor) {
    return {name, Parameter::STRING, "a text", nullptr, nullptr, tensor};
}
constexpr Setting SETTINGS[] = {
    number("top_k", &Inputs::top_k),           text("long", &Inputs::longs),
    number("stride", &Inputs::stride, false),  flag("multi_label", &Inputs::multi_label),
    flag("raw_scores", &Inputs::raw_scores),   number("dimensions", &Inputs::dimensions),
    text("prompt_name", &Inputs::prompt_names), text("prompt", &Inputs::prompts),
};

Options bit(const Setting &setting) { return 1u << (&setting - SETTINGS); }

const Setting *find(Span name, Options options) {
    for (const Setting &each : SETTINGS)
        if (options & bit(each) && name.equals(each.name)) return &each;
    return nullptr;
}

bool refuse_unknown(Span name, Options options, Text &refusal) {
    Text names;
    for (const Setting &each : SETTINGS)
        if (options & bit(each) && (!append(names, names.empty() ? "its parameters are " : ", ") || !append(names, each.name))) return false;
    return refuse_with(refusal, shown(name), " is no parameter of this model; ", names.empty() ? "it takes none" : "", names);
}

bool equal(int32_t one, int32_t other) { return one == other; }
bool equal(uint8_t one, uint8_t other) { return one == other; }
bool equal(Span one, Span other) { return same(one, other); }

// If the tensor is empty, sets it to `value` for all rows. Returns false, and sets `agrees` to false, if the tensor has
// another value. Also returns false if there is no memory.
template <typename Value> bool set(Array<Value> &tensor, Value value, size_t rows, bool &agrees) {
    if (tensor.empty()) return tensor.resize(rows, value);
    for (const Value &each : tensor) agrees = agrees && equal(each, value);
    return agrees;
}

bool refuse_below_one(const char *name, int64_t least, Text &refusal) {
    return least >= 1 || refuse(refusal, IS_BELOW_ONE, name, long(least));
}

bool apply(const Setting &setting, const Parameter &parameter, Inputs &inputs, Text &refusal) {
    bool agrees = true, added = false;
    int64_t value = parameter.number;
    if (setting.numbers && setting.from_one && !refuse_below_one(setting.name, value, refusal)) return false;
    const int64_t bounded = value < -1 ? -1 : value < INT32_MAX ? value : INT32_MAX;
    if (setting.numbers) added = set(inputs.*setting.numbers, int32_t(bounded), inputs.rows, agrees);
    if (setting.flags) added = set(inputs.*setting.flags, uint8_t(value != 0), inputs.rows, agrees);
    if (setting.texts) added = set(inputs.*setting.texts, parameter.text, inputs.rows, agrees);
    if (agrees) return added;
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    const Span number = {digits, strlen(digits)}, flag = value ? Span{"True", 4} : Span{"False", 5};
    const Span text = setting.numbers ? number : setting.flags ? flag : parameter.text;
    return refuse_with(refusal, setting.name, " is ", text, ", but its tensor says otherwise: send one of them");
}

}  // namespace

bool check_inputs(Task task, const Inputs &inputs, Text &refusal) {
    refusal.clear();
    if (task == Task::TEXT_RANKING && inputs.queries.empty()) return refuse(refusal, IS_MISSING, "query");
    if (inputs.texts.empty()) return refuse(refusal, IS_MISSING, "text_input");
    for (const Setting &setting : SETTINGS) {
        if (!setting.numbers || !setting.from_one) continue;
        int32_t least = 1;
        for (int32_t each : inputs.*setting.numbers) least = each < least ? each : least;
        if (!refuse_below_one(setting.name, least, refusal)) return false;
    }
    return true;
}

Options option_named(Span input) {
    for (const Setting &each : SETTINGS)
        if (input.equals(each.name)) return bit(each);
    return 0;
}

bool apply_parameters(Options options, const Parameter *parameters, size_t count, Inputs &inputs, Text &refusal) {
    refusal.clear();
    for (size_t i = 0; i < count; i++) {
        if (is_tritons(parameters[i].name)) continue;
        const Setting *setting = find(parameters[i].name, options);
        if (!setting) return refuse_unknown(parameters[i].name, options, refusal);
        if (parameters[i].kind != setting->kind)
            return refuse(refusal, HAS_ANOTHER_TYPE, setting->name, setting->allowed);
    }
    for (size_t i = 0; i < count; i++) {
        const Setting *setting = is_tritons(parameters[i].name) ? nullptr : find(parameters[i].name, options);
        if (setting && !apply(*setting, parameters[i], inputs, refusal)) return false;
    }
    return true;
}

}  // namespace hfx
