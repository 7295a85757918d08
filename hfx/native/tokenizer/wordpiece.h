// WordPiece: the longest token that a word begins with, then the longest token "##..." that the rest begins with, and
// so on.
#pragma once
#include "tokenizer.h"
#include "trie.h"

namespace hfx {

class WordPiece {
public:
    // Sections {Trie of the vocabulary, the prefix of tokens inside words}; flags: id of the unknown token; value:
    // words of more characters than this are unknown. Returns an error message, or null.
    const char *open(const File &file, const Step &step, uint32_t tokens);
    [[nodiscard]] bool encode(Span word, uint32_t number, Array<Token> &to) const;

private:
    Trie trie_;
    uint32_t inside_ = 0, unknown_ = 0, most_characters_ = 0;
};

}  // namespace hfx
