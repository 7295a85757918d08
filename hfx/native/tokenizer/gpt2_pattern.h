// The pattern that byte-level tokenizers split by, by hand:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once
#include "tables.h"

namespace hfx {

// What it knows of a character.
enum CharClass : uint8_t { OTHER, SPACE, LETTER, NUMBER };

// Where the piece that begins at `at`, before `end`, ends: behind `at`.
const char *end_of_piece(const ByteTable &classes, const char *at, const char *end);

}  // namespace hfx
