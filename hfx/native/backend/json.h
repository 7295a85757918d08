// A strict reader of JSON (RFC 8259) for files and configurations. A document becomes a tree in one piece of memory.
#pragma once
#include "../memory.h"

namespace hfx {

class Document;

// A value of a document, which must outlive the value. A missing value is a value too, so that paths need no checks:
// config["parameters"]["queue"]["string_value"].text().
class Json {
public:
    enum Kind : uint8_t { MISSING, NIL, NO, YES, NUMBER, STRING, ARRAY, OBJECT };

    Json() = default;
    Kind kind() const;
    explicit operator bool() const { return document_; }  // false: it is missing
    bool is_null() const { return kind() == NIL; }
    bool is_true() const { return kind() == YES; }

    size_t size() const;                     // of an array or an object
    Json operator[](const char *key) const;  // of an object; the last of equal keys, as in Python
    Json first() const;                      // for (Json each = list.first(); each; each = each.next())
    Json next() const;
    Span key() const;   // of a member of an object
    Span text() const;  // the content of a string, or a number as it is written; empty for anything else
    // Return false if the value is not a whole number (1e2 and 1.0 are not), or does not fit into the range or 64 bits.
    bool integer(int64_t &value) const;
    bool integer(int64_t &value, int64_t least, int64_t most) const;

private:
    friend class Document;
    Json(const Document *document, uint32_t at) : document_(document), at_(at) {}
    const Document *document_ = nullptr;
    uint32_t at_ = 0;
};

class Document {
public:
    static constexpr size_t MOST_BYTES = 4 << 20;
    static constexpr unsigned MOST_DEPTH = 64;

    // Returns what is wrong with `text`, or null. `text` need not outlive the call.
    [[nodiscard]] const char *parse(Span text);
    // Parses the file `path`. Returns what is wrong with it, or null.
    [[nodiscard]] const char *read(const char *path);
    size_t position() const { return at_; }  // of the error, in bytes
    Json root() const { return nodes_.empty() ? Json() : Json(this, 0); }

private:
    friend class Json;
    // An array or object is followed by its members; `next` is the next member, or 0 for the last one.
    struct Node {
        Json::Kind kind = Json::MISSING;
        uint32_t key = 0, key_size = 0, text = 0, size = 0, next = 0;
    };
    const char *value(unsigned depth, uint32_t key, uint32_t key_size);
    const char *members(unsigned depth, uint32_t parent);
    const char *string(uint32_t &text, uint32_t &size);
    const char *escape();
    const char *hexadecimal(uint32_t &unit);
    const char *number(Node &node);
    const char *word(Node &node);
    size_t digits();
    void skip_blanks();
    char peek() const { return at_ < source_.size ? source_.data[at_] : '\0'; }
    bool take(char expected) { return peek() == expected && at_ < source_.size ? ++at_ : 0; }

    Span source_;
    size_t at_ = 0;
    Array<Node> nodes_;
    Text texts_;  // of strings and numbers, each with a terminating zero
};

}  // namespace hfx
