// From a request to its tensors and its answer, in C for tests: one request at a time, whose results stay until the next.
#include "backend/answer.h"
#include "backend/encode.h"
#include "backend/parameters.h"
#include "backend/queue.h"
#include "backend/scores.h"
#include "tokenizer/utf8.h"

using namespace hfx;

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Rows {
    Options options;
    Text strings;  // a setting of texts, as Triton has it
    Document settings, answers;
    Tokenizer tokenizer;
    Encoder encoder;
    Answer answer;
    Inputs inputs;
    Array<Parameter> parameters;
    Tokens tokens;
    Outputs outputs;
    Text refusal;
};

template <typename Type> Span bytes(const Array<Type> &values) {
    return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(Type)};
}

Span content(Rows &rows, const char *name) {
    const Inputs &inputs = rows.inputs;
    const Array<Span> *strings = !strcmp(name, "prompt_name") ? &inputs.prompt_names : !strcmp(name, "prompt") ? &inputs.prompts
                                 : !strcmp(name, "long")      ? &inputs.longs : nullptr;
    if (strings) {
        rows.strings.clear();
        for (Span each : *strings)
            if (!append_string(rows.strings, each)) return {};
        return bytes(rows.strings);
    }
    if (!strcmp(name, "window_tokens")) return bytes(rows.tokens.windows);
    if (!strcmp(name, "stride")) return bytes(inputs.stride);
    if (!strcmp(name, "refusal")) return bytes(rows.refusal);
    if (!strcmp(name, "input_ids")) return bytes(rows.tokens.ids);
    if (!strcmp(name, "attention_mask")) return bytes(rows.tokens.mask);
    if (!strcmp(name, "token_type_ids")) return bytes(rows.tokens.types);
    if (!strcmp(name, "truncated_tokens")) return bytes(rows.tokens.truncated);
    if (!strcmp(name, "top_k")) return bytes(rows.inputs.top_k);
    if (!strcmp(name, "dimensions")) return bytes(rows.inputs.dimensions);
    if (!strcmp(name, "multi_label")) return bytes(rows.inputs.multi_label);
    if (!strcmp(name, "raw_scores")) return bytes(rows.inputs.raw_scores);
    for (size_t i = 0; i < rows.outputs.count; i++)
        if (!strcmp(name, rows.outputs.each[i].name)) return bytes(rows.outputs.each[i].content);
    return {};
}

}  // namespace

// Without a tokenizer, for answers alone, `path` is null. Returns null where it can't be opened; why is in `wrong`.
EXPORTED Rows *rows_open(const char *path, const char *settings, const char *answer, const char **wrong) {
    Rows *rows = make<Rows>();
    *wrong = rows->settings.parse({settings, strlen(settings)});
    if (path && !*wrong) *wrong = rows->tokenizer.open(path);
    if (path && !*wrong) *wrong = rows->encoder.open(rows->settings.root(), rows->tokenizer);
    if (answer && !*wrong) *wrong = rows->answers.parse({answer, strlen(answer)});
    if (answer && !*wrong) *wrong = rows->answer.open(rows->answers.root());
    if (!*wrong) return rows;
    destroy(rows);
    return nullptr;
}
EXPORTED void rows_close(Rows *rows) { destroy(rows); }

EXPORTED void rows_option(Rows *rows, const char *input) { rows->options |= option_named({input, strlen(input)}); }
EXPORTED void rows_begin(Rows *rows, size_t count, size_t labels) {
    rows->inputs = Inputs();
    rows->inputs.rows = count, rows->inputs.label_count = labels;
    rows->parameters.clear(), rows->refusal.clear(), rows->options = 0;
    rows->outputs.count = 0;
}
EXPORTED bool rows_string(Rows *rows, const char *field, const char *data, size_t size) {
    Inputs &inputs = rows->inputs;
    Array<Span> *texts = &inputs.labels;
    if (!strcmp(field, "query")) texts = &inputs.queries;
    if (!strcmp(field, "text_input")) texts = &inputs.texts;
    if (!strcmp(field, "prompt")) texts = &inputs.prompts;
    if (!strcmp(field, "prompt_name")) texts = &inputs.prompt_names;
    if (!strcmp(field, "long")) texts = &inputs.longs;
    return texts->push({data, size});
}
EXPORTED bool rows_setting(Rows *rows, const char *name, int32_t value) {
    Inputs &inputs = rows->inputs;
    if (!strcmp(name, "top_k")) return inputs.top_k.push(value);
    if (!strcmp(name, "dimensions")) return inputs.dimensions.push(value);
    if (!strcmp(name, "stride")) return inputs.stride.push(value);
    return (strcmp(name, "raw_scores") ? inputs.multi_label : inputs.raw_scores).push(uint8_t(value));
}
EXPORTED bool rows_parameter(Rows *rows, const char *name, size_t size, int kind, int64_t number, const char *text) {
    return rows->parameters.push({{name, size}, Parameter::Kind(kind), number, {text, strlen(text)}});
}

EXPORTED bool rows_settle(Rows *rows) {
    Task task = rows->encoder.settings.task;
    return check_inputs(task, rows->inputs, rows->refusal) &&
           apply_parameters(rows->options, rows->parameters.data(), rows->parameters.size(), rows->inputs, rows->refusal);
}
EXPORTED bool rows_encode(Rows *rows) { return rows->encoder.encode(rows->inputs, rows->tokens, rows->refusal); }
EXPORTED bool rows_answer(Rows *rows, const float *data, size_t count, size_t sequences, size_t classes, const int32_t *windows) {
    return rows->answer.answer(rows->inputs, {data, count, sequences, classes, windows}, rows->outputs, rows->refusal);
}
EXPORTED bool rows_embed(Rows *rows, const float *data, size_t count, size_t width) {
    return embed(rows->inputs, {data, count, 1, width, nullptr}, "embedding", rows->outputs, rows->refusal);
}
EXPORTED const char *rows_content(Rows *rows, const char *name, size_t *size) {
    Span found = content(*rows, name);
    *size = found.size;
    return found.data;
}
EXPORTED size_t rows_width(const Rows *rows) { return rows->tokens.width; }

EXPORTED void exponentials(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = exponential(values[i]);
}
EXPORTED const char *utf8_reason(const char *text, size_t size, size_t *at) {
    Utf8Error error = utf8_error({text, size});
    *at = error.at;
    return error.reason;
}

// A value of JSON as Python would write it (repr), strings and keys in hexadecimal digits.
static bool write(const Json &json, Text &to) {
    static constexpr char DIGITS[] = "0123456789abcdef";
    auto text = [&to](Span from) {
        bool appended = append(to, "'");
        for (size_t i = 0; i < from.size; i++)
            appended = appended && to.push(DIGITS[uint8_t(from.data[i]) >> 4]) && to.push(DIGITS[from.data[i] & 15]);
        return appended && append(to, "'");
    };
    static constexpr const char *WORDS[] = {"", "None", "False", "True"};
    if (json.kind() < Json::NUMBER) return append(to, WORDS[json.kind()]);
    if (json.kind() == Json::NUMBER) return append(to, json.text());
    if (json.kind() == Json::STRING) return text(json.text());
    bool named = json.kind() == Json::OBJECT, appended = append(to, named ? "{" : "[");
    for (Json each = json.first(); each; each = each.next())
        appended = appended && (!named || (text(each.key()) && append(to, ":"))) && write(each, to) && append(to, ",");
    return appended && append(to, named ? "}" : "]");
}

// Writes the order in which a queue has up to 10 requests of one row run: the digits of the requests of a batch, or the
// digit of a large request for each of its parts, with a blank behind each run. `tokens` has the tokens of each request.
EXPORTED void queue_order(const size_t *tokens, size_t count, size_t batch, char *order) {
    Queue queue;
    Job jobs[10];
    queue.bound.batch = batch;
    for (size_t i = 0; i < count; i++) {
        jobs[i].inputs.rows = 1, jobs[i].work = jobs[i].rest = tokens[i];
        if (queue.take(1, tokens[i], 0)) queue.add(&jobs[i]);
    }
    while (Job *first = queue.next()) {
        if (queue.is_large(*first)) queue.computed(*first, first->rest < LARGE ? first->rest : LARGE);
        if (queue.is_large(*first) && !first->rest) queue.end_turns(*first);
        for (Job *job = first; job; job = job->next) *order++ = char('0' + (job - jobs));
        *order++ = ' ';
    }
    *order = 0;
}

// Writes what two leaders of a queue run in turns, in the same form. The batches of a leader that runs in its own thread
// are in brackets, those of the second one in square brackets.
EXPORTED void order_of_two(const size_t *tokens, size_t count, size_t batch, char *order) {
    Queue queue;
    Job jobs[10];
    queue.bound.batch = batch, queue.has_second = true;
    for (size_t i = 0; i < count; i++) {
        jobs[i].inputs.rows = 1, jobs[i].work = jobs[i].rest = tokens[i];
        if (queue.take(1, tokens[i], 0)) queue.add(&jobs[i]);
    }
    bool leads[2] = {true, false};
    for (bool second = false; leads[0] || leads[1]; second = !second) {
        bool alone = false;
        Job *first = leads[second] ? queue.next_of_two(second, alone) : nullptr;
        leads[second] = first;
        leads[1] = queue.start_second() || leads[1];
        if (first && queue.is_large(*first)) queue.computed(*first, first->rest < LARGE ? first->rest : LARGE);
        if (first && queue.is_large(*first) && !first->rest) queue.end_turns(*first);
        if (first && alone) *order++ = second ? '[' : '(';
        for (Job *job = first; job; job = job->next) *order++ = char('0' + (job - jobs));
        if (first && alone) *order++ = second ? ']' : ')';
        if (first) *order++ = ' ';
    }
    *order = 0;
}

// What is wrong with a JSON text, and where; null: nothing, and `written` has it.
EXPORTED const char *json_error(const char *text, size_t size, char *written, size_t room, size_t *at) {
    Document document;
    Text to;
    const char *wrong = document.parse({text, size});
    *at = document.position();
    if (wrong) return wrong;
    if (!write(document.root(), to) || to.size() >= room) return "there is no room";
    memcpy(written, to.data(), to.size());
    written[to.size()] = 0;
    return nullptr;
}
