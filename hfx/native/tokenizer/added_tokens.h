// Added tokens: texts that are found before the model gets the rest of a text. The leftmost one is found first, and the
// longest of several at one place.
#pragma once
#include "tables.h"
#include "trie.h"

namespace hfx {

// A part of a text: an added token (`added` is its id, and `text` is empty), or the text between two added tokens.
struct Segment {
    Span text;
    int32_t added = -1;
};

class AddedTokens {
public:
    // Returns an error message, or null. Ids must be below `tokens`. Without a section of the tag, there are no added
    // tokens.
    const char *open(const File &file, File::Tag tag, uint32_t tokens);

    // Calls `use(segment)` for each part of a text that isn't empty. Stops and returns false if a call returns false.
    template <typename Use> [[nodiscard]] bool split(Span text, Use &&use) const {
        const char *from = text.data, *end = text.data + text.size;
        SpaceRun run;
        for (const char *at = from; at < end;) {
            const Added *added = nullptr;
            const char *stop = starts_[uint8_t(*at)] ? longest(at, end, added) : at;
            if (!added) {
                at++;
                continue;
            }
            const char *start = at;
            at = stop;
            if (!widen(text, from, *added, start, stop, run)) continue;
            if (from < start && !use(Segment{{from, size_t(start - from)}})) return false;
            if (!use(Segment{{}, int32_t(added->id)})) return false;
            from = stop;
        }
        return from == end || use(Segment{{from, size_t(end - from)}});
    }

private:
    enum : uint32_t { LSTRIP = 1, RSTRIP = 2, SINGLE_WORD = 4 };
    enum : uint8_t { WORD = 1, SPACE = 2 };
    struct Added {
        uint32_t id, flags;
    };
    // White space that has been scanned: all characters from `begin` to `end`.
    struct SpaceRun {
        const char *begin = nullptr, *end = nullptr;
    };
    const char *longest(const char *at, const char *end, const Added *&added) const;
    bool widen(Span text, const char *from, const Added &added, const char *&start, const char *&stop, SpaceRun &run) const;
    bool alone(Span text, const char *start, const char *stop) const;

    View<Added> added_;
    Trie trie_;
    ByteTable classes_;
    bool starts_[256] = {};
};

}  // namespace hfx
