#include "settings.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr int64_t MOST = INT32_MAX;

// Reads a number from `least` on; `value` stays if it is null or missing. Returns false if it is anything else.
template <typename Number> bool read_number(const Json &json, int64_t least, Number &value) {
    int64_t number = 0;
    if (!json || json.is_null()) return true;
    if (!json.integer(number, least, MOST)) return false;
    value = Number(number);
    return true;
}

const char *find(Span text, const char *wanted) {
    void *found = text.size ? memmem(text.data, text.size, wanted, strlen(wanted)) : nullptr;
    return static_cast<const char *>(found);
}

bool has_braces(Span text) { return find(text, "{") || find(text, "}"); }

}  // namespace

const char *Settings::read(const Json &json) {
    if (!task_named(json["task"].text(), task)) return "task is none that this backend knows";
    if (!read_number(json["max_length"], 1, max_length) || !max_length) return "max_length is no number from 1 on";
    if (!read_number(json["pad_id"], 0, pad_id)) return "pad_id is no token id";
    if (!read_number(json["pad_type_id"], 0, pad_type_id)) return "pad_type_id is no number";
    if (!read_number(json["vocab_size"], 1, vocab_size)) return "vocab_size is no number from 1 on";
    Json side = json["truncation_side"];
    left = side.text().equals("left");
    if (side && !left && !side.text().equals("right")) return "truncation_side is neither left nor right";
    windows = task == Task::TEXT_CLASSIFICATION && json["stride"] && !json["stride"].is_null();
    if (!read_number(json["stride"], 0, stride)) return "stride is no number of tokens";
    takes_empty = json["takes_empty"].is_true();
    for (Json each = json["inputs"].first(); each; each = each.next()) types |= each.text().equals("token_type_ids");
    const char *wrong = read_widths(json["widths"]);
    if (!wrong) wrong = read_prompts(json);
    return wrong ? wrong : read_template(json["hypothesis_template"]);
}

const char *Settings::read_widths(const Json &json) {
    int32_t last = -1;
    for (Json each = json.first(); each; each = each.next()) {
        if (!read_number(each, int64_t(last) + 1, last)) return "widths are no numbers of tokens that ascend";
        if (!widths.push(last)) return NO_MEMORY;
    }
    return last < 0 || size_t(last) < max_length ? "no width holds max_length tokens" : nullptr;
}

const char *Settings::read_prompts(const Json &json) {
    Json prompts = json["prompts"], otherwise = json["default_prompt"], pools = json["pools_prompt"];
    has_prompts = prompts && !prompts.is_null(), pools_prompt = !pools || pools.is_true();
    if (has_prompts && prompts.kind() != Json::OBJECT) return "prompts are no texts by name";
    if (otherwise && otherwise.kind() != Json::STRING) return "default_prompt is no text";
    if (pools && pools.kind() != Json::YES && pools.kind() != Json::NO) return "pools_prompt is neither true nor false";
    for (Json each = prompts.first(); each; each = each.next()) {
        if (each.kind() != Json::STRING) return "prompts are no texts by name";
        if (!append(prompts_, each.key()) || !ends_.push(prompts_.size())) return NO_MEMORY;
        if (!append(prompts_, each.text()) || !ends_.push(prompts_.size())) return NO_MEMORY;
    }
    return append(default_prompt, otherwise.text()) ? nullptr : NO_MEMORY;
}

Span Settings::prompt(size_t at) const {
    size_t begin = at ? ends_[at - 1] : 0;
    return {prompts_.data() + begin, ends_[at] - begin};
}

// Finds the last of prompts with equal names, as Python does.
bool Settings::find_prompt(Span name, Span &found) const {
    for (size_t at = ends_.size(); at; at -= 2)
        if (same(prompt(at - 2), name)) return found = prompt(at - 1), true;
    return false;
}

bool Settings::append_prompt_names(Text &to) const {
    bool appended = true;
    for (size_t at = 0; at < ends_.size(); at += 2)
        appended = appended && append(to, at ? ", '" : "'") && append(to, prompt(at)) && append(to, "'");
    return appended;
}

// Python formats the template by str.format, of which this function supports only {}.
const char *Settings::read_template(const Json &json) {
    Span text = json ? json.text() : Span{"This example is {}.", 19};
    const char *label = find(text, "{}");
    if (!label) return "hypothesis_template has no place {}";
    Span before = {text.data, size_t(label - text.data)}, behind = {label + 2, text.size - before.size - 2};
    if (has_braces(before) || has_braces(behind)) return "hypothesis_template has braces beside its place {}";
    return append(before_label, before) && append(behind_label, behind) ? nullptr : NO_MEMORY;
}

}  // namespace hfx
