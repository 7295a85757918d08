#include "json.h"
#include "refusals.h"
#include "../tokenizer/utf8.h"
#include <errno.h>
#include <stdio.h>

namespace hfx {
namespace {

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

}  // namespace

Json::Kind Json::kind() const { return document_ ? document_->nodes_[at_].kind : MISSING; }

size_t Json::size() const { return kind() >= ARRAY ? document_->nodes_[at_].size : 0; }

Json Json::first() const { return size() ? Json(document_, at_ + 1) : Json(); }

Json Json::next() const {
    uint32_t next = document_ ? document_->nodes_[at_].next : 0;
    return next ? Json(document_, next) : Json();
}

Json Json::operator[](const char *key) const {
    Json found;
    if (kind() == OBJECT)
        for (Json each = first(); each; each = each.next())
            if (each.key().equals(key)) found = each;
    return found;
}

Span Json::key() const {
    if (!document_) return {};
    const Document::Node &node = document_->nodes_[at_];
    return {document_->texts_.data() + node.key, node.key_size};
}

Span Json::text() const {
    if (kind() != STRING && kind() != NUMBER) return {};
    const Document::Node &node = document_->nodes_[at_];
    return {document_->texts_.data() + node.text, node.size};
}

bool Json::integer(int64_t &value) const {
    if (kind() != NUMBER) return false;
    char *end = nullptr;
    errno = 0;
    long long read = strtoll(text().data, &end, 10);
    if (errno || *end) return false;
    value = read;
    return true;
}

bool Json::integer(int64_t &value, int64_t least, int64_t most) const {
    int64_t read;
    if (!integer(read) || read < least || read > most) return false;
    value = read;
    return true;
}

const char *Document::parse(Span text) {
    source_ = text, at_ = 0;
    nodes_.clear(), texts_.clear();
    if (text.size > MOST_BYTES) return "the JSON is too large";
    Utf8Error bad = utf8_error(text);
    if (bad.reason) {
        at_ = bad.at;
        return bad.reason;
    }
    const char *wrong = value(0, 0, 0);
    if (!wrong && (skip_blanks(), at_ < source_.size)) wrong = "something follows the JSON";
    if (wrong) nodes_.clear();
    source_ = {};
    return wrong;
}

const char *Document::read(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return "it can't be opened";
    Text content;
    const char *wrong = content.resize(MOST_BYTES + 1) ? nullptr : NO_MEMORY;
    if (!wrong) content.shorten(fread(content.data(), 1, content.size(), file));
    if (!wrong && ferror(file)) wrong = "it can't be read";
    fclose(file);
    return wrong ? wrong : parse({content.data(), content.size()});
}

const char *Document::value(unsigned depth, uint32_t key, uint32_t key_size) {
    if (depth > MOST_DEPTH) return "the JSON is nested too deeply";
    uint32_t at = uint32_t(nodes_.size());
    Node node;
    node.key = key, node.key_size = key_size;
    skip_blanks();
    char begin = peek();
    if (begin == '{' || begin == '[') {
        node.kind = begin == '{' ? Json::OBJECT : Json::ARRAY;
        at_++;
        return nodes_.push(node) ? members(depth, at) : NO_MEMORY;
    }
    const char *wrong;
    if (begin == '"') {
        node.kind = Json::STRING;
        at_++;
        wrong = string(node.text, node.size);
    } else {
        wrong = begin == '-' || is_digit(begin) ? number(node) : word(node);
    }
    return wrong ? wrong : nodes_.push(node) ? nullptr : NO_MEMORY;
}

// Reads the members between the brackets of `parent`, and the closing bracket.
const char *Document::members(unsigned depth, uint32_t parent) {
    bool named = nodes_[parent].kind == Json::OBJECT;
    char close = named ? '}' : ']';
    uint32_t last = 0;
    skip_blanks();
    if (take(close)) return nullptr;
    do {
        uint32_t key = 0, key_size = 0, at = uint32_t(nodes_.size());
        skip_blanks();
        if (named) {
            if (!take('"')) return "a key is expected";
            if (const char *wrong = string(key, key_size)) return wrong;
            skip_blanks();
            if (!take(':')) return "a colon is expected";
        }
        if (const char *wrong = value(depth + 1, key, key_size)) return wrong;
        if (last) nodes_[last].next = at;
        last = at;
        nodes_[parent].size++;
        skip_blanks();
    } while (take(','));
    return take(close) ? nullptr : "a comma or the closing bracket is expected";
}

// Reads from behind the opening quotation mark of a string to behind its closing one.
const char *Document::string(uint32_t &text, uint32_t &size) {
    text = uint32_t(texts_.size());
    while (!take('"')) {
        size_t begin = at_;
        while (at_ < source_.size && peek() != '"' && peek() != '\\' && uint8_t(peek()) >= 0x20) at_++;
        if (!texts_.append(source_.data + begin, at_ - begin)) return NO_MEMORY;
        if (at_ == source_.size) return "a string has no end";
        if (uint8_t(peek()) < 0x20) return "a string has a control character";
        if (take('\\'))
            if (const char *wrong = escape()) return wrong;
    }
    size = uint32_t(texts_.size()) - text;
    return texts_.push('\0') ? nullptr : NO_MEMORY;
}

const char *Document::escape() {
    static constexpr char LETTERS[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
    char letter = peek();
    const char *found = letter ? strchr(LETTERS, letter) : nullptr;
    if (found) {
        at_++;
        return texts_.push(MEANT[found - LETTERS]) ? nullptr : NO_MEMORY;
    }
    if (!take('u')) return "a string has an unknown escape";
    uint32_t unit, low;
    if (const char *wrong = hexadecimal(unit)) return wrong;
    if (unit >= 0xd800 && unit < 0xe000) {  // surrogates, RFC 8259 section 7
        if (unit >= 0xdc00 || !take('\\') || !take('u')) return "a string has half of a surrogate pair";
        if (const char *wrong = hexadecimal(low)) return wrong;
        if (low < 0xdc00 || low >= 0xe000) return "a string has half of a surrogate pair";
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    return append(texts_, unit) ? nullptr : NO_MEMORY;
}

const char *Document::hexadecimal(uint32_t &unit) {
    unit = 0;
    for (int i = 0; i < 4; i++, at_++) {
        char digit = peek(), lower = char(digit | 0x20);
        if (!is_digit(digit) && (lower < 'a' || lower > 'f')) return "four hexadecimal digits are expected";
        unit = unit << 4 | uint32_t(is_digit(digit) ? digit - '0' : lower - 'a' + 10);
    }
    return nullptr;
}

const char *Document::number(Node &node) {
    size_t begin = at_;
    take('-');
    bool whole = take('0') || digits();
    bool fraction = !take('.') || digits();
    bool exponent = true;
    if (take('e') || take('E')) {
        if (!take('+')) take('-');
        exponent = digits();
    }
    if (!whole || !fraction || !exponent) return "a digit is expected";
    node.kind = Json::NUMBER;
    node.text = uint32_t(texts_.size()), node.size = uint32_t(at_ - begin);
    return texts_.append(source_.data + begin, node.size) && texts_.push('\0') ? nullptr : NO_MEMORY;
}

size_t Document::digits() {
    size_t begin = at_;
    while (is_digit(peek())) at_++;
    return at_ - begin;
}

const char *Document::word(Node &node) {
    static constexpr struct {
        const char *text;
        Json::Kind kind;
    } WORDS[] = {{"null", Json::NIL}, {"false", Json::NO}, {"true", Json::YES}};
    for (const auto &word : WORDS) {
        size_t size = strlen(word.text);
        if (source_.size - at_ < size || memcmp(source_.data + at_, word.text, size)) continue;
        node.kind = word.kind;
        at_ += size;
        return nullptr;
    }
    return "a value is expected";
}

void Document::skip_blanks() {
    while (at_ < source_.size && (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t')) at_++;
}

}  // namespace hfx
