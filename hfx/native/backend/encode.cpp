#include "encode.h"

namespace hfx {
namespace {

constexpr const char *TEXT = "text_input", *QUERY = "query", *LABELS = "candidate_labels", *PROMPT = "prompt",
                     *PROMPT_NAME = "prompt_name";

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
                        : text_row(before, text, work, refusal);
        if (!made) return false;
    }
    tokens.rows = inputs.rows, tokens.sequences = work.ends.size() / inputs.rows;
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
    if (!labelled) return check_prompts(inputs, refusal);
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

bool Encoder::text_row(Span prompt, Span text, Work &work, Text &refusal) const {
    Span raw;
    Piece piece;
    size_t unpooled = 0;
    if (!behind(prompt, text, work.prompted, raw)) return false;
    if (!settings.pools_prompt && prompt.size && !prompt_tokens(prompt, work, unpooled, refusal)) return false;
    if (!settings.pools_prompt && !work.unpooled.push(unpooled)) return false;
    for (size_t bytes : BYTES_PER_TOKEN) {
        if (!take_piece(TEXT, raw, settings.max_length * bytes, settings.left, piece, refusal)) return false;
        if (!tokenize(piece.text, work.first)) return false;
        if (!piece.cut || settled(work.first, room_, settings.left)) break;
    }
    size_t count = work.first.size();
    if (!count && !template_->special_tokens() && !settings.takes_empty) return refuse(refusal, HAS_NO_TOKENS, TEXT);
    size_t dropped = count > room_ ? count - room_ : piece.cut;
    return add(kept(work.first, count < room_ ? count : room_), nullptr, TEXT, work, refusal) &&
           work.truncated.push(int32_t(dropped));
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

// Pads all sequences to the least width that holds the longest.
bool Encoder::pad(const Work &work, Tokens &tokens) const {
    size_t longest = 0, begin = 0, total;
    for (size_t end : work.ends) {
        longest = end - begin > longest ? end - begin : longest;
        begin = end;
    }
    tokens.width = longest;
    for (size_t at = settings.widths.size(); at-- && size_t(settings.widths[at]) >= longest;)
        tokens.width = size_t(settings.widths[at]);
    if (__builtin_mul_overflow(work.ends.size(), tokens.width, &total)) return false;
    tokens.ids.clear(), tokens.mask.clear(), tokens.types.clear(), tokens.truncated.clear();
    if (!tokens.ids.resize(total, settings.pad_id) || !tokens.mask.resize(total, 0)) return false;
    if (settings.types && !tokens.types.resize(total, settings.pad_type_id)) return false;
    begin = 0;
    for (size_t i = 0; i < work.ends.size(); i++) {
        size_t count = work.ends[i] - begin, to = i * tokens.width, unpooled = work.unpooled.empty() ? 0 : work.unpooled[i];
        for (size_t j = 0; j < count; j++) {
            tokens.ids[to + j] = work.ids[begin + j], tokens.mask[to + j] = j < unpooled ? 2 : 1;
            if (settings.types) tokens.types[to + j] = work.types[begin + j];
        }
        begin = work.ends[i];
    }
    return tokens.truncated.append(work.truncated.data(), work.truncated.size());
}

}  // namespace hfx
