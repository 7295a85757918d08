// How much of a text is tokenized, and the proof that the rest does not change the tokens kept. See inputs.py.
#pragma once
#include "../tokenizer/tokenizer.h"
#include "refusals.h"

namespace hfx {

struct Piece {
    Span text;
    bool cut = false;
};

// Takes the first `limit` bytes of `raw`, or the last if `left`, whole characters only. Returns false if they are not
// UTF-8.
[[nodiscard]] bool take_piece(const char *field, Span raw, size_t limit, bool left, Piece &piece, Text &refusal);

// Whether the first `kept` tokens of a cut text, or the last if `left`, are those of the whole text. They are if the
// cut is in another word than the nearest of them, or at least MARGIN tokens away.
bool settled(const Array<Token> &tokens, size_t kept, bool left);

// Each returns false, with a refusal that names `field`, if the text is not as the function's name says.
[[nodiscard]] bool is_utf8(const char *field, Span raw, Text &refusal);
[[nodiscard]] bool is_short(const char *field, Span raw, size_t max_tokens, Text &refusal);
[[nodiscard]] bool none_is_huge(const char *field, const Span *texts, size_t count, Text &refusal);

// Whether Python's str.strip leaves nothing of a text in valid UTF-8.
bool is_blank(Span text);

}  // namespace hfx
