// Unigram: of all ways to divide a text into pieces, the way with the highest sum of the pieces' scores (Viterbi).
#pragma once
#include "tokenizer.h"
#include "trie.h"

namespace hfx {

class Unigram {
public:
    // The buffers of one call of `encode` at a time.
    struct Memory {
        Array<uint32_t> pieces;  // by end: the last piece of the best way, as its bytes << 1 | whether it is unknown
        Array<double> scores;    // of the best ways to the last places
    };

    // Sections {Trie of the pieces, score of each token f64, ids of <0x00> to <0xFF> or NONE, or nothing if bytes
    // aren't used}; flags: id of the unknown token; value: bytes of the longest piece. Returns an error message, or
    // null.
    const char *open(const File &file, const Step &step, uint32_t tokens);
    [[nodiscard]] bool encode(Span text, uint32_t word, Array<Token> &to, Memory &memory) const;

private:
    static constexpr uint32_t NONE = ~0u, LONGEST = 1 << 20;
    static constexpr double UNKNOWN_PENALTY = 10;  // how far a character without a piece scores below the worst piece
    bool read_bytes(const File &file, uint64_t section, uint32_t tokens);
    [[nodiscard]] bool find_best(Span text, Memory &memory) const;
    [[nodiscard]] bool add_backwards(Span piece, uint32_t word, Array<Token> &to) const;
    bool has_bytes(Span piece) const;

    Trie trie_;
    View<double> scores_;
    View<uint32_t> bytes_;
    double unknown_score_ = 0;
    uint32_t unknown_ = 0, longest_ = 0;
};

}  // namespace hfx
