// Unicode's normalization forms (UAX 15), for texts whose characters are already decomposed.
#pragma once
#include "tables.h"

namespace hfx {

struct Composition {
    uint32_t first, second, composed;
};

// Appends `text` with its marks, the characters with a combining class, in canonical order: marks between two other
// characters are sorted by class.
[[nodiscard]] bool order_marks(const ByteTable &classes, Span text, Text &to);

// Appends `text`, whose marks are in order, with its characters composed: Hangul by rule, and others by `compositions`,
// which are sorted.
[[nodiscard]] bool compose(const ByteTable &classes, View<Composition> compositions, Span text, Text &to);

}  // namespace hfx
