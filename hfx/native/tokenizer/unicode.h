// Unicode's normalization forms (UAX 15), of texts whose characters are decomposed already.
#pragma once
#include "tables.h"

namespace hfx {

struct Composition {
    uint32_t first, second, composed;
};

// Appends `text` with its marks in canonical order: those with a combining class, by class between characters of none.
[[nodiscard]] bool order_marks(const ByteTable &classes, Span text, Text &to);

// Appends `text`, whose marks are in order, with characters composed: `compositions` are sorted, and Hangul by rule.
[[nodiscard]] bool compose(const ByteTable &classes, View<Composition> compositions, Span text, Text &to);

}  // namespace hfx
