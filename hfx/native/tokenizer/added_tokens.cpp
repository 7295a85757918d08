#include "added_tokens.h"
#include "utf8.h"

namespace hfx {

const char *AddedTokens::open(const File &file, File::Tag tag, uint32_t tokens) {
    uint32_t section = file.find(tag);
    if (section == File::NONE) return nullptr;
    const char *damaged = "its added tokens are damaged";
    if (!file.read(section, added_) || !trie_.open(file, uint64_t(section) + 1, uint32_t(added_.count))) return damaged;
    if (added_.count >= File::NONE || !classes_.open(file, file.find(File::WORD_CLASSES))) return damaged;
    for (const Added &added : added_)
        if (added.id >= tokens) return damaged;
    for (int byte = 0; byte < 256; byte++) starts_[byte] = trie_.child(Trie::ROOT, char(byte)) != Trie::NOWHERE;
    return nullptr;
}

// Finds the longest added token that begins at `at`, and returns where it ends.
const char *AddedTokens::longest(const char *at, const char *end, const Added *&added) const {
    const char *stop = at;
    for (uint32_t node = Trie::ROOT; at < end;) {
        node = trie_.child(node, *at++);
        if (node == Trie::NOWHERE) break;
        if (trie_.ends(node)) added = &added_[trie_.value(node)], stop = at;
    }
    return stop;
}

// Widens a token by the white space that belongs to it. Returns false if it must be a word of its own and is not.
bool AddedTokens::widen(
    Span text, const char *from, const Added &added, const char *&start, const char *&stop, SpaceRun &run
) const {
    if (added.flags & SINGLE_WORD && !alone(text, start, stop)) return false;
    uint32_t code;
    if (added.flags & LSTRIP) {
        // The token before may have taken this white space already.
        while (start > from) {
            size_t bytes = decode_last(text.data, start, code);
            if (!(classes_[code] & SPACE)) break;
            start -= bytes;
        }
        start = start < from ? from : start;
    }
    if (added.flags & RSTRIP) {
        const char *end = text.data + text.size, *begin = stop;
        if (run.begin && stop >= run.begin && stop < run.end) stop = run.end;
        while (stop < end) {
            size_t bytes = decode(stop, end, code);
            if (!(classes_[code] & SPACE)) break;
            stop += bytes;
        }
        run = {begin, stop};
    }
    return true;
}

// Whether a token has no letters, digits and the like beside it.
bool AddedTokens::alone(Span text, const char *start, const char *stop) const {
    uint32_t code;
    const char *end = text.data + text.size;
    if (start > text.data && (decode_last(text.data, start, code), classes_[code] & WORD)) return false;
    return stop == end || (decode(stop, end, code), !(classes_[code] & WORD));
}

}  // namespace hfx
