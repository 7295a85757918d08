// Byte-level BPE: a piece begins as its bytes. The two neighbours whose merge has the lowest rank become one symbol, as
// long as there is a merge.
#pragma once
#include "tokenizer.h"
#include "trie.h"

namespace hfx {

class BytePairs {
public:
    // The buffers of one call of `encode` at a time.
    struct Memory {
        struct Symbol {
            uint32_t id, before, behind;
        };
        struct Candidate {
            uint32_t rank, at, id;
            bool operator<(const Candidate &other) const { return rank != other.rank ? rank < other.rank : at < other.at; }
        };
        Array<Symbol> symbols;
        Array<Candidate> heap;
    };

    // Sections {Trie of the pieces that are one token, merges by hash, id of each byte or NONE}; flags: 1 neighbouring
    // unknown bytes become one token; value: the id of the unknown token, or NONE. Returns an error message, or null.
    const char *open(const File &file, const Step &step, uint32_t tokens);
    [[nodiscard]] bool encode(Span piece, uint32_t number, Array<Token> &to, Memory &memory) const;

private:
    static constexpr uint32_t NONE = ~0u;
    struct Merge {
        uint32_t left, right, rank, id;
    };
    const Merge *find(uint32_t left, uint32_t right) const;
    [[nodiscard]] bool read_symbols(Span piece, Memory &memory) const;
    [[nodiscard]] bool merge(Memory &memory) const;
    [[nodiscard]] bool offer(uint32_t at, Memory &memory) const;

    Trie whole_;
    View<Merge> merges_;
    View<uint32_t> bytes_;
    uint32_t unknown_ = NONE, shift_ = 0;
    bool fuse_ = false;
};

}  // namespace hfx
