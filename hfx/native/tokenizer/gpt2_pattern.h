// The pattern by which byte-level tokenizers split texts, without a library of regular expressions:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once
#include "tables.h"

namespace hfx {

// The pattern's classes of characters.
enum CharClass : uint8_t { OTHER, SPACE, LETTER, NUMBER };

// Returns the end of the piece that begins at `at`, which is before `end`. A piece is never empty.
const char *end_of_piece(const ByteTable &classes, const char *at, const char *end);

}  // namespace hfx
