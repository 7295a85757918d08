// The patterns that byte-level tokenizers split by, by hand: each is a rule for where the piece at `at` ends.
#pragma once
#include "tables.h"

namespace hfx {

enum class SplitPattern : uint32_t {
    GPT2,   // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    COUNT,
};
// What the patterns know of a character.
enum CharClass : uint8_t { OTHER, SPACE, LETTER, NUMBER };

// Where the piece that begins at `at`, before `end`, ends: behind `at`.
const char *end_of_piece(SplitPattern pattern, const ByteTable &classes, const char *at, const char *end);

}  // namespace hfx
