// How much of a text is tokenized, with a proof that what is left out does not change the tokens kept: see inputs.py.
#pragma once
#include "../tokenizer/tokenizer.h"
#include "refusals.h"

namespace hfx {

// Bytes that are tokenized for each token that the net reads: the first piece that settles the tokens kept, else the last.
constexpr size_t BYTES_PER_TOKEN[] = {16, 64, 256};
// A cut changes the tokens near it only: those of its word (WordPiece: 100 characters), or of the end of a Viterbi path.
constexpr size_t MARGIN = 128;
constexpr size_t LONGEST_TEXT = 16 << 20;  // bytes, however much of a text is read

struct Piece {
    Span text;
    bool cut = false;
};

// The first `limit` bytes of `raw`, or the last (`left`), whole characters only. False: they are not UTF-8.
[[nodiscard]] bool take_piece(const char *field, Span raw, size_t limit, bool left, Piece &piece, Text &refusal);

// Whether the first `kept` tokens of a cut text, or the last (`left`), are those of the whole text: the cut lies in
// another word than the last of them, or MARGIN tokens away.
bool settled(const Array<Token> &tokens, size_t kept, bool left);

// False, with the refusal of `field`, where it is not so.
[[nodiscard]] bool is_utf8(const char *field, Span raw, Text &refusal);
[[nodiscard]] bool is_short(const char *field, Span raw, size_t max_tokens, Text &refusal);
[[nodiscard]] bool none_is_huge(const char *field, const Span *texts, size_t count, Text &refusal);

// Whether Python's str.strip leaves nothing of a text in valid UTF-8.
bool is_blank(Span text);

}  // namespace hfx
