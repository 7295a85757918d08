// Added tokens: texts that are found before the model sees them, leftmost first, of those the longest.
#pragma once
#include "tables.h"
#include "trie.h"

namespace hfx {

// A part of a text: an added token (its id; of the text there is no more need), or what is between two.
struct Segment {
    Span text;
    int32_t added = -1;
};

class AddedTokens {
public:
    // Returns what is wrong, else null. Ids are below `tokens`; without a section there are no added tokens.
    const char *open(const File &file, File::Tag tag, uint32_t tokens);
    bool empty() const { return !added_.count; }

    // Calls `use(segment)` for the parts of a text that aren't empty, until one returns false; returns the last answer.
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
    // White space that has been walked: behind `begin`, all is up to `end`.
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
