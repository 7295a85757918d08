#include "wordpiece.h"

namespace hfx {

const char *WordPiece::open(const File &file, const Step &step, uint32_t tokens) {
    View<char> prefix;
    if (!trie_.open(file, step.section, tokens) || !file.read(uint64_t(step.section) + 2, prefix) || step.flags >= tokens)
        return "its WordPiece model is damaged";
    inside_ = trie_.walk(Trie::ROOT, {prefix.data, prefix.count});
    unknown_ = step.flags, most_characters_ = step.value;
    return nullptr;
}

static bool longer(Span word, uint32_t characters) {
    if (word.size <= characters) return false;
    size_t count = 0;
    for (size_t at = 0; at < word.size; at++) count += (word.data[at] & 0xc0) != 0x80;
    return count > characters;
}

bool WordPiece::encode(Span word, uint32_t number, Array<Token> &to) const {
    size_t before = to.size();
    bool known = !longer(word, most_characters_);
    for (size_t from = 0; known && from < word.size;) {
        uint32_t node = from ? inside_ : uint32_t(Trie::ROOT), best = Trie::NOWHERE;
        size_t until = from;
        for (size_t at = from; at < word.size && node != Trie::NOWHERE;) {
            node = trie_.child(node, word.data[at++]);
            if (trie_.ends(node)) best = node, until = at;
        }
        known = best != Trie::NOWHERE;
        if (known && !to.push({int32_t(trie_.value(best)), number})) return false;
        from = until;
    }
    if (known) return true;
    to.shorten(before);
    return to.push({int32_t(unknown_), number});
}

}  // namespace hfx
