#include "settings.h"
#include "refusals.h"

namespace hfx {
namespace {

constexpr int64_t MOST = INT32_MAX;

// False: it is there, and no number from `least` on. Where it is null or missing, `value` stays.
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
    for (Json each = json["inputs"].first(); each; each = each.next()) types |= each.text().equals("token_type_ids");
    const char *wrong = read_widths(json["widths"]);
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

// Python formats it by str.format, of which this knows one thing: {}.
const char *Settings::read_template(const Json &json) {
    Span text = json ? json.text() : Span{"This example is {}.", 19};
    const char *label = find(text, "{}");
    if (!label) return "hypothesis_template has no place {}";
    Span before = {text.data, size_t(label - text.data)}, behind = {label + 2, text.size - before.size - 2};
    if (has_braces(before) || has_braces(behind)) return "hypothesis_template has braces beside its place {}";
    return append(before_label, before) && append(behind_label, behind) ? nullptr : NO_MEMORY;
}

}  // namespace hfx
