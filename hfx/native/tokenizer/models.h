// The models, which turn the pieces of a text into tokens.
#pragma once
#include "bpe.h"
#include "unigram.h"
#include "wordpiece.h"

namespace hfx {

class Model {
public:
    enum Kind : uint32_t { WORDPIECE = 1, BPE, UNIGRAM };
    struct Memory {
        BytePairs::Memory bpe;
        Unigram::Memory unigram;
    };

    // Returns an error message, or null. Ids must be below `tokens`.
    const char *open(const File &file, uint32_t tokens) {
        View<Step> steps;
        if (!file.read(file.find(File::MODEL), steps) || steps.count != 1) return "it has no model";
        kind_ = steps[0].kind;
        if (kind_ == WORDPIECE) return wordpiece_.open(file, steps[0], tokens);
        if (kind_ == BPE) return bpe_.open(file, steps[0], tokens);
        return kind_ == UNIGRAM ? unigram_.open(file, steps[0], tokens) : "its model isn't known";
    }
    // Appends the tokens of a piece, whose number is `word`. Returns false if there is no memory.
    [[nodiscard]] bool encode(Span piece, uint32_t word, Array<Token> &to, Memory &memory) const {
        if (kind_ == WORDPIECE) return wordpiece_.encode(piece, word, to);
        return kind_ == BPE ? bpe_.encode(piece, word, to, memory.bpe) : unigram_.encode(piece, word, to, memory.unigram);
    }

private:
    uint32_t kind_ = 0;
    WordPiece wordpiece_;
    BytePairs bpe_;
    Unigram unigram_;
};

}  // namespace hfx
