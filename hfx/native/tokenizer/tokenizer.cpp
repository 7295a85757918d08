#include "tokenizer.h"
#include "added_tokens.h"
#include "models.h"
#include "normalizer.h"
#include "pre_tokenizer.h"

namespace hfx {

// The contents of a file, in the order in which a text passes them: added tokens are found, the rest is normalized,
// added tokens are found in the normalized text as well, and the rest of it is split into pieces for the model.
struct Tokenizer::Parts {
    File file;
    View<uint32_t> ends;
    View<char> text;
    AddedTokens raw, added;
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Model model;

    const char *open(const char *path);
    uint32_t tokens() const { return uint32_t(ends.count); }
    bool read_tokens();
};

namespace {

// The state of the encoding of one text.
struct Encoding : Pieces {
    const Model &model;
    Array<Token> &tokens;
    Model::Memory memory;
    Text normalized, other, buffers[PreTokenizer::MOST_STEPS];
    uint32_t word = 0;

    Encoding(const Model &model, Array<Token> &tokens) : Pieces{encode_piece}, model(model), tokens(tokens) {}

    static bool encode_piece(Pieces &self, Span piece) {
        Encoding &encoding = static_cast<Encoding &>(self);
        return encoding.model.encode(piece, encoding.word++, encoding.tokens, encoding.memory);
    }
};

// Reads the special tokens of a text, or of two, from one section.
bool read_template(const File &file, uint64_t section, uint32_t tokens, Template &made) {
    View<int32_t> values;
    if (!file.read(section, values) || values.count < 5) return false;
    made.first_type = values[0], made.second_type = values[1];
    const int32_t *at = values.data + 5, *end = values.end();
    Template::Part *parts[] = {&made.begin, &made.middle, &made.end};
    for (int part = 0; part < 3; part++) {
        int32_t count = values[2 + part];
        if (count < 0 || count > (end - at) / 2) return false;
        *parts[part] = {at, at + count, size_t(count)};
        for (int32_t n = 0; n < count; n++)
            if (uint32_t(at[n]) >= tokens) return false;
        at += 2 * count;
    }
    return at == end;
}

}  // namespace

const char *Tokenizer::Parts::open(const char *path) {
    if (const char *wrong = file.open(path)) return wrong;
    if (!read_tokens()) return "its tokens are damaged";
    const char *wrong = raw.open(file, File::RAW_ADDED, tokens());
    if (!wrong) wrong = added.open(file, File::ADDED, tokens());
    if (!wrong) wrong = normalizer.open(file);
    if (!wrong) wrong = pre_tokenizer.open(file);
    return wrong ? wrong : model.open(file, tokens());
}

bool Tokenizer::Parts::read_tokens() {
    uint64_t section = file.find(File::TOKEN_ENDS);
    if (!file.read(section, ends) || !file.read(section + 1, text) || ends.count > INT32_MAX) return false;
    uint32_t before = 0;
    for (uint32_t end : ends) {
        if (end < before || end > text.count) return false;
        before = end;
    }
    return true;
}

const char *Tokenizer::open(const char *path) {
    destroy(parts_);
    parts_ = make<Parts>();
    if (!parts_) return "there is no memory";
    if (const char *wrong = parts_->open(path)) return wrong;
    uint64_t section = parts_->file.find(File::TEMPLATES);
    bool read = read_template(parts_->file, section, parts_->tokens(), single) &&
                read_template(parts_->file, section + 1, parts_->tokens(), pair);
    return read ? nullptr : "its special tokens are damaged";
}

bool Tokenizer::has_bytes_of(const char *path) const { return parts_ && parts_->file.has_bytes_of(path); }

Tokenizer::~Tokenizer() { destroy(parts_); }

Span Tokenizer::token(int32_t id) const {
    if (id < 0 || uint32_t(id) >= parts_->tokens()) return {};
    uint32_t begin = id ? parts_->ends[size_t(id) - 1] : 0;
    return {parts_->text.data + begin, parts_->ends[size_t(id)] - begin};
}

bool Tokenizer::encode(Span text, Array<Token> &tokens) const {
    const Parts &parts = *parts_;
    Encoding encoding(parts.model, tokens);
    bool first = true, moved = false;  // whether a segment's first character is the text's
    auto in_normalized = [&](const Segment &segment) {
        if (segment.added >= 0) return tokens.push({segment.added, encoding.word++});
        bool begins = first && !moved && segment.text.data == encoding.normalized.data();
        return parts.pre_tokenizer.split(segment.text, begins, encoding.buffers, encoding);
    };
    auto in_text = [&](const Segment &segment) {
        if (segment.added >= 0) return tokens.push({segment.added, encoding.word++});
        first = segment.text.data == text.data;
        moved = false;
        if (!parts.normalizer.normalize(segment.text, encoding.normalized, encoding.other, moved)) return false;
        return parts.added.split({encoding.normalized.data(), encoding.normalized.size()}, in_normalized);
    };
    return parts.raw.split(text, in_text);
}

}  // namespace hfx
