#include "encode.h"

namespace hfx {
namespace {

constexpr const char *TEXT = "text_input", *QUERY = "query", *LABELS = "candidate_labels", *PROMPT = "prompt",
                     *PROMPT_NAME = "prompt_name", *LONG = "long", *STRIDE = "stride";
constexpr const char *WAYS[] = {"truncate", "mean", "max", "error"};

// Reduces two texts' numbers of tokens to fit into `room`; the shorter text keeps up to half of it.
void longest_first(size_t &first, size_t &second, size_t room) {
    if (first + second <= room) return;
    size_t shorter = first < second ? first : second;
    if (shorter > room / 2) shorter = room / 2;
    size_t longer = room - shorter;
    bool first_is_shorter = first <= second;
    first = first_is_shorter ? shorter : longer;
    second = first_is_shorter ? longer : shorter;
}

// Refuses a text of `size` units of `what`, which may not be cut. Always returns false.
bool too_long(size_t size, const char *what, size_t most, Text &refusal) {
    Text reason;
    refuse(reason, IS_TOO_LONG, TEXT, size, what, most);
    return refuse_with(refusal, "[hfx:CONTEXT_TOO_LONG] ", reason, ". ", TO_DIVIDE);
}

bool append_special(Array<int32_t> &ids, Array<int32_t> &types, const Template::Part &part) {
    return ids.append(part.ids, part.count) && types.append(part.types, part.count);
}

bool append_tokens(Array<int32_t> &ids, Array<int32_t> &types, const Token *tokens, size_t count, int32_t type) {
    for (size_t i = 0; i < count; i++)
        if (!ids.push(tokens[i].id)) return false;
    return types.resize(types.size() + count, type);
}

}  // namespace

struct Encoder::Part {
    const Token *tokens;
    size_t count;
};

// The sequences of a request before they are padded, one after the other, and the data that the rows share.
struct Encoder::Work {
    Array<int32_t> ids, types, truncated;
    Array<size_t> ends;
    Array<size_t> windows;   // how many sequences each row has, if rows may have different numbers
    Array<size_t> unpooled;  // how many first tokens of each sequence aren't pooled; empty if all are pooled
    Array<Token> first, second;
    Text prompted;  // a prompt and the text behind it
    Span prompt, query;
    bool has_query = false;
    Array<Token> hypotheses;
    Array<size_t> hypothesis_ends;
};

const char *Encoder::open(const Json &json, const Tokenizer &tokenizer) {
    if (const char *wrong = settings.read(json)) return wrong;
    bool pairs = settings.task == Task::TEXT_RANKING || settings.task == Task::ZERO_SHOT_CLASSIFICATION;
    tokenizer_ = &tokenizer, template_ = pairs ? &tokenizer.pair : &tokenizer.single;
    // Without special tokens, tokenizers counts a hypothesis's tokens among those that are left out of the text.
    if (settings.task == Task::ZERO_SHOT_CLASSIFICATION && !template_->special_tokens())
        return "the tokenizer has no special tokens around a text and its hypothesis";
    if (template_->special_tokens() >= settings.max_length) return "max_length leaves no room beside the special tokens";
    room_ = settings.max_length - template_->special_tokens();
    return nullptr;
}

bool Encoder::encode(const Inputs &inputs, Tokens &tokens, Text &refusal) const {
    refusal.clear();
    if (!check(inputs, refusal)) return false;
    Work work;
    for (size_t row = 0; row < inputs.rows; row++) {
        Span text = inputs.texts[row];
        const Span *labels = inputs.labels.data() + row * inputs.label_count;
        Span before = prompt(inputs, row);
        bool made = settings.task == Task::TEXT_RANKING ? pair_row(before, inputs.queries[row], text, work, refusal)
                    : settings.task == Task::ZERO_SHOT_CLASSIFICATION
                        ? label_row(text, labels, inputs.label_count, work, refusal)
                        : text_row(inputs, row, work, refusal);
        if (!made) return false;
    }
    tokens.rows = inputs.rows, tokens.sequences = work.ends.size() / inputs.rows;
    for (size_t each : work.windows) tokens.sequences = each > tokens.sequences ? each : tokens.sequences;
    return pad(work, tokens);
}

// Checks the inputs of all rows of a request.
bool Encoder::check(const Inputs &inputs, Text &refusal) const {
    size_t rows = inputs.rows;
    bool ranking = settings.task == Task::TEXT_RANKING, labelled = settings.task == Task::ZERO_SHOT_CLASSIFICATION;
    if (ranking && inputs.queries.size() != rows)
        return refuse(refusal, ROWS_DIFFER, QUERY, inputs.queries.size(), TEXT, rows);
    if (!rows || inputs.texts.size() != rows) return refuse(refusal, IS_MISSING, TEXT);
    if (ranking && !none_is_huge(QUERY, inputs.queries.data(), rows, refusal)) return false;
    if (!none_is_huge(TEXT, inputs.texts.data(), rows, refusal)) return false;
    if (!labelled) return check_prompts(inputs, refusal) && check_reading(inputs, refusal);
    size_t count = inputs.label_count;
    if (!count) return refuse(refusal, HAS_NO_STRINGS, LABELS);
    if (inputs.labels.size() / count != rows || inputs.labels.size() % count)
        return refuse(refusal, ROWS_DIFFER, TEXT, rows, LABELS, inputs.labels.size() / count);
    for (size_t row = 0; row < rows; row++)
        if (!none_is_huge(LABELS, inputs.labels.data() + row * count, count, refusal)) return false;
    return true;
}

bool Encoder::check_prompts(const Inputs &inputs, Text &refusal) const {
    bool named = !inputs.prompt_names.empty();
    const char *field = named ? PROMPT_NAME : PROMPT;
    const Array<Span> &given = named ? inputs.prompt_names : inputs.prompts;
    if (given.empty()) return true;
    if (!settings.has_prompts) return refuse(refusal, HAS_NO_PROMPTS, field);
    if (named && !inputs.prompts.empty()) return refuse(refusal, BOTH_ARE_SENT, PROMPT_NAME, PROMPT);
    if (!none_is_huge(field, given.data(), given.size(), refusal)) return false;
    if (given.size() != inputs.rows) return refuse(refusal, ROWS_DIFFER, TEXT, inputs.rows, field, given.size());
    for (Span each : given)
        if (!is_utf8(field, each, refusal)) return false;
    Span found;
    for (Span each : inputs.prompt_names) {
        if (settings.find_prompt(each, found)) continue;
        Text names;
        return settings.append_prompt_names(names) && refuse_with(refusal, "prompt_name is '", shown(each), "'; the model's prompts are ", names);
    }
    return true;
}

bool Encoder::check_reading(const Inputs &inputs, Text &refusal) const {
    if (!settings.windows) return true;
    if (!none_is_huge(LONG, inputs.longs.data(), inputs.longs.size(), refusal)) return false;
    for (Span each : inputs.longs)
        if (!is_utf8(LONG, each, refusal)) return false;
    for (size_t row = 0; row < inputs.rows; row++) {
        bool known = inputs.longs.empty();
        for (const char *way : WAYS) known = known || inputs.longs[row].equals(way);
        Text value;
        if (!known && (!append(value, shown(inputs.longs[row])) || !value.push('\0'))) return false;
        if (!known) return refuse(refusal, IS_NONE_OF, LONG, value.data(), "truncate or mean or max or error");
        long stride = inputs.stride.empty() ? long(settings.stride) : inputs.stride[row];
        if (stride < 0 || size_t(stride) >= room_) return refuse(refusal, WINDOWS_SHARE, STRIDE, stride, room_ - 1);
        const Long way = reading(inputs, row);
        if (!inputs.stride.empty() && way != Long::WINDOWS)
            return refuse(refusal, HAS_NO_WINDOWS, STRIDE, stride, WAYS[way == Long::REFUSED ? 3 : 0]);
    }
    return true;
}

Encoder::Long Encoder::reading(const Inputs &inputs, size_t row) const {
    if (!settings.windows || inputs.longs.empty() || inputs.longs[row].equals(WAYS[0])) return Long::CUT;
    return inputs.longs[row].equals("error") ? Long::REFUSED : Long::WINDOWS;
}

// The prompt to put before a row's text or query; it may be empty.
Span Encoder::prompt(const Inputs &inputs, size_t row) const {
    Span found = {settings.default_prompt.data(), settings.default_prompt.size()};
    if (!inputs.prompts.empty()) found = inputs.prompts[row];
    if (!inputs.prompt_names.empty()) settings.find_prompt(inputs.prompt_names[row], found);
    return found;
}

// Counts the tokens of a prompt alone, with the special tokens before it, as sentence-transformers (6.2) does.
bool Encoder::prompt_tokens(Span prompt, Work &work, size_t &count, Text &refusal) const {
    constexpr size_t MOST_BYTES = BYTES_PER_TOKEN[sizeof BYTES_PER_TOKEN / sizeof *BYTES_PER_TOKEN - 1];
    Piece piece;
    if (!take_piece(TEXT, prompt, settings.max_length * MOST_BYTES, settings.left, piece, refusal)) return false;
    if (!tokenize(piece.text, work.second)) return false;
    count = (work.second.size() < room_ ? work.second.size() : room_) + template_->special_tokens();
    if (template_->end.count || (count && count == template_->begin.count)) count--;
    return true;
}

// Sets `raw` to a text behind its prompt, which may be empty. Returns false if there is no memory.
static bool behind(Span prompt, Span text, Text &joined, Span &raw) {
    raw = text;
    if (!prompt.size) return true;
    joined.clear();
    if (!append(joined, prompt) || !append(joined, text)) return false;
    raw = {joined.data(), joined.size()};
    return true;
}

bool Encoder::text_row(const Inputs &inputs, size_t row, Work &work, Text &refusal) const {
    Span prompt = this->prompt(inputs, row), text = inputs.texts[row], raw;
    const Long way = reading(inputs, row);
    Piece piece;
    size_t unpooled = 0;
    if (!behind(prompt, text, work.prompted, raw)) return false;
    if (!settings.pools_prompt && prompt.size && !prompt_tokens(prompt, work, unpooled, refusal)) return false;
    if (!settings.pools_prompt && !work.unpooled.push(unpooled)) return false;
    for (size_t bytes : BYTES_PER_TOKEN) {
        if (!take_piece(TEXT, raw, settings.max_length * bytes, settings.left, piece, refusal)) return false;
        if (!tokenize(piece.text, work.first)) return false;
        if (way == Long::WINDOWS && (piece.cut || work.first.size() > room_)) return window_row(raw, inputs, row, work, refusal);
        if (!piece.cut || settled(work.first, room_, settings.left)) break;
    }
    size_t count = work.first.size(), dropped = count > room_ ? count - room_ : piece.cut;
    if (dropped && way == Long::REFUSED) return too_long(settings.max_length + dropped, "tokens or more", settings.max_length, refusal);
    if (!count && !template_->special_tokens() && !settings.takes_empty) return refuse(refusal, HAS_NO_TOKENS, TEXT);
    return add(kept(work.first, count < room_ ? count : room_), nullptr, TEXT, work, refusal) &&
           (!settings.windows || work.windows.push(1)) && work.truncated.push(int32_t(dropped));
}

// Adds a sequence for each window over the whole text. Windows begin at its start, or end at its end if truncation
// removes the beginning of a text.
bool Encoder::window_row(Span text, const Inputs &inputs, size_t row, Work &work, Text &refusal) const {
    if (text.size > CONTEXT_BYTES) return too_long(text.size, "bytes", CONTEXT_BYTES, refusal);
    if (!is_utf8(TEXT, text, refusal) || !tokenize(text, work.first)) return false;
    const size_t advance = room_ - (inputs.stride.empty() ? settings.stride : size_t(inputs.stride[row]));
    const size_t most = REQUEST_TOKENS / inputs.rows < CONTEXT_TOKENS ? REQUEST_TOKENS / inputs.rows : CONTEXT_TOKENS;
    const size_t count = work.first.size(), windows = count > room_ ? 1 + (count - room_ + advance - 1) / advance : 1;
    if (windows > 1 && windows * settings.max_length > most)
        return too_long(windows * settings.max_length, "tokens in its windows", most, refusal);
    if (!count && !template_->special_tokens()) return refuse(refusal, HAS_NO_TOKENS, TEXT);
    for (size_t at = 0; at < windows; at++) {
        const size_t before = at * advance, size = count - before < room_ ? count - before : room_;
        const Token *first = work.first.data() + (settings.left ? count - before - size : before);
        if (!add({first, size}, nullptr, TEXT, work, refusal)) return false;
    }
    return work.windows.push(windows) && work.truncated.push(0);
}

// Adds one sequence of a query and a text; the longer of the two is truncated first.
bool Encoder::pair_row(Span prompt, Span unprompted, Span text, Work &work, Text &refusal) const {
    Span query;
    if (!behind(prompt, unprompted, work.prompted, query)) return false;
    if (!is_short(QUERY, query, settings.max_length, refusal) || !is_utf8(QUERY, query, refusal)) return false;
    bool again = work.has_query && same(prompt, work.prompt) && same(unprompted, work.query);
    if (!again && !tokenize(query, work.first)) return false;
    work.prompt = prompt, work.query = unprompted, work.has_query = true;
    size_t first = work.first.size(), second = 0;
    // With this many tokens of a cut text, the tokens kept are those of the whole text, and it is certain which of the
    // two is longer.
    size_t enough = (room_ > first ? room_ : first) + MARGIN;
    Piece piece;
    for (size_t bytes : BYTES_PER_TOKEN) {
        if (!take_piece(TEXT, text, settings.max_length * bytes, settings.left, piece, refusal)) return false;
        if (!tokenize(piece.text, work.second)) return false;
        second = work.second.size();
        if (!piece.cut || second >= enough) break;
    }
    size_t dropped = first + second;
    longest_first(first, second, room_);
    dropped -= first + second;
    if (!first && !second && !template_->special_tokens())
        return refuse(refusal, PAIR_HAS_NO_TOKENS, QUERY, TEXT);
    Part other = kept(work.second, second);
    return add(kept(work.first, first), &other, "query or text_input", work, refusal) &&
           work.truncated.push(int32_t(dropped || !piece.cut ? dropped : 1));
}

// Adds a sequence for each label, of the text and a hypothesis; only the text is truncated.
bool Encoder::label_row(Span text, const Span *labels, size_t count, Work &work, Text &refusal) const {
    if (!hypotheses(labels, count, work, refusal)) return false;
    if (!text.size) return refuse(refusal, IS_EMPTY, TEXT);
    Piece piece;
    if (!premise(text, work, piece, refusal)) return false;
    size_t dropped = piece.cut, size = work.first.size();
    for (size_t i = 0; i < count; i++) {
        size_t begin = work.hypothesis_ends[i];
        Part hypothesis = {work.hypotheses.data() + begin, work.hypothesis_ends[i + 1] - begin};
        size_t some = size + hypothesis.count > room_ ? room_ - hypothesis.count : size;
        if (size - some > dropped) dropped = size - some;
        if (!add(kept(work.first, some), &hypothesis, "text_input or candidate_labels", work, refusal)) return false;
    }
    return work.truncated.push(int32_t(dropped));
}

bool Encoder::hypotheses(const Span *labels, size_t count, Work &work, Text &refusal) const {
    if (count > MAX_LABELS)
        return refuse(refusal, HAS_TOO_MANY_LABELS, LABELS, count, MAX_LABELS);
    hfx::Text text;
    Array<Token> tokens;
    work.hypotheses.clear(), work.hypothesis_ends.clear();
    if (!work.hypothesis_ends.push(0)) return false;
    for (size_t i = 0; i < count; i++) {
        if (!is_short(LABELS, labels[i], settings.max_length, refusal) || !is_utf8(LABELS, labels[i], refusal)) return false;
        if (is_blank(labels[i])) return refuse(refusal, HAS_AN_EMPTY_LABEL, LABELS);
        text.clear();
        if (!text.append(settings.before_label.data(), settings.before_label.size()) || !append(text, labels[i])) return false;
        if (!text.append(settings.behind_label.data(), settings.behind_label.size())) return false;
        if (!tokenize({text.data(), text.size()}, tokens)) return false;
        if (!work.hypotheses.append(tokens.data(), tokens.size())) return false;
        if (!work.hypothesis_ends.push(work.hypotheses.size())) return false;
    }
    return true;
}

// Tokenizes as much of the text as is needed beside the shortest hypothesis.
bool Encoder::premise(Span raw, Work &work, Piece &piece, Text &refusal) const {
    const Array<size_t> &ends = work.hypothesis_ends;
    size_t longest = 0, shortest = SIZE_MAX;
    for (size_t i = 1; i < ends.size(); i++) {
        size_t size = ends[i] - ends[i - 1];
        longest = size > longest ? size : longest, shortest = size < shortest ? size : shortest;
    }
    for (size_t bytes : BYTES_PER_TOKEN) {
        if (!take_piece(TEXT, raw, settings.max_length * bytes, settings.left, piece, refusal)) return false;
        if (!tokenize(piece.text, work.first)) return false;
        size_t size = work.first.size();
        if (longest >= room_ && size + longest > room_)
            return refuse(refusal, LEAVES_NO_ROOM, LABELS, settings.max_length);
        if (!piece.cut || (size + shortest > room_ && settled(work.first, room_ - shortest, settings.left))) break;
    }
    return true;
}

bool Encoder::tokenize(Span text, Array<Token> &tokens) const {
    tokens.clear();
    return tokenizer_->encode(text, tokens);
}

// The first `count` of a text's tokens, or the last if truncation removes the beginning.
Encoder::Part Encoder::kept(const Array<Token> &tokens, size_t count) const {
    return {tokens.data() + (settings.left ? tokens.size() - count : 0), count};
}

// Adds a sequence of one text or two to the row.
bool Encoder::add(const Part &first, const Part *second, const char *field, Work &work, Text &refusal) const {
    Array<int32_t> &ids = work.ids, &types = work.types;
    size_t begin = ids.size();
    if (!append_special(ids, types, template_->begin)) return false;
    if (!append_tokens(ids, types, first.tokens, first.count, template_->first_type)) return false;
    if (second) {
        if (!append_special(ids, types, template_->middle)) return false;
        if (!append_tokens(ids, types, second->tokens, second->count, template_->second_type)) return false;
    }
    if (!append_special(ids, types, template_->end) || !work.ends.push(ids.size())) return false;
    return embedded(ids.data() + begin, ids.size() - begin, field, refusal);
}

// Returns false if the net has no embedding of a token; the refusal names the three such tokens with the lowest ids.
bool Encoder::embedded(const int32_t *ids, size_t count, const char *field, Text &refusal) const {
    int64_t last = settings.vocab_size - 1;
    Text tokens;
    for (int named = 0; named < 3; named++) {
        int64_t least = INT64_MAX;
        for (size_t i = 0; i < count; i++)
            if (ids[i] > last && ids[i] < least) least = ids[i];
        if (least == INT64_MAX) break;
        last = least;
        if (!append(tokens, named ? ", '" : "'") || !append(tokens, tokenizer_->token(int32_t(least))) || !append(tokens, "'")) return false;
    }
    return tokens.empty() || refuse_with(refusal, field, " has the token ", tokens, ", which the model has no embedding of");
}

// Pads all sequences to the least width that holds the longest, and rows to the largest number of sequences.
bool Encoder::pad(const Work &work, Tokens &tokens) const {
    size_t longest = 0, begin = 0, total, sequences = tokens.rows * tokens.sequences;
    for (size_t end : work.ends) {
        longest = end - begin > longest ? end - begin : longest;
        begin = end;
    }
    tokens.width = longest;
    for (size_t at = settings.widths.size(); at-- && size_t(settings.widths[at]) >= longest;)
        tokens.width = size_t(settings.widths[at]);
    if (__builtin_mul_overflow(sequences, tokens.width, &total)) return false;
    tokens.ids.clear(), tokens.mask.clear(), tokens.types.clear(), tokens.truncated.clear(), tokens.windows.clear();
    if (!tokens.ids.resize(total, settings.pad_id) || !tokens.mask.resize(total, 0)) return false;
    if (settings.types && !tokens.types.resize(total, settings.pad_type_id)) return false;
    if (settings.windows && !tokens.windows.resize(sequences, 0)) return false;
    for (size_t row = 0, i = 0; row < tokens.rows; row++)
        for (size_t place = 0; place < tokens.sequences; place++) {
            const size_t to = (row * tokens.sequences + place) * tokens.width;
            if (!work.windows.empty() && place >= work.windows[row]) tokens.mask[to] = 1;
            else copy(work, i++, to, tokens);
        }
    return tokens.truncated.append(work.truncated.data(), work.truncated.size());
}

// Copies a sequence to the place `to` of the tokens.
void Encoder::copy(const Work &work, size_t sequence, size_t to, Tokens &tokens) const {
    const size_t begin = sequence ? work.ends[sequence - 1] : 0, count = work.ends[sequence] - begin;
    const size_t unpooled = work.unpooled.empty() ? 0 : work.unpooled[sequence];
    for (size_t j = 0; j < count; j++) {
        tokens.ids[to + j] = work.ids[begin + j], tokens.mask[to + j] = j < unpooled ? 2 : 1;
        if (settings.types) tokens.types[to + j] = work.types[begin + j];
    }
    if (settings.windows) tokens.windows[to / tokens.width] = int32_t(count);
}

}  // namespace hfx
