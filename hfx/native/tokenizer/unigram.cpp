#include "unigram.h"
#include "utf8.h"

namespace hfx {

const char *Unigram::open(const File &file, const Step &step, uint32_t tokens) {
    uint64_t section = step.section;
    bool read = file.read(section + 2, scores_) && scores_.count && scores_.count <= tokens &&
                trie_.open(file, section, uint32_t(scores_.count)) && read_bytes(file, section + 3, tokens);
    if (!read || step.flags >= scores_.count || step.value > LONGEST) return "its Unigram model is damaged";
    unknown_ = step.flags, longest_ = step.value;
    double lowest = scores_[0];
    for (double score : scores_) lowest = score < lowest ? score : lowest;
    unknown_score_ = lowest - UNKNOWN_PENALTY;
    return nullptr;
}

bool Unigram::read_bytes(const File &file, uint64_t section, uint32_t tokens) {
    if (!file.read(section, bytes_) || (bytes_.count && bytes_.count != 256)) return false;
    for (uint32_t id : bytes_)
        if (id != NONE && id >= tokens) return false;
    return true;
}

bool Unigram::encode(Span text, uint32_t word, Array<Token> &to, Memory &memory) const {
    if (!text.size) return true;
    if (!find_best(text, memory)) return false;
    size_t first = to.size();
    size_t unknown_end = 0;  // the end of a run of unknown characters, which become one piece
    for (size_t end = text.size, start; end; end = start) {
        start = end - (memory.pieces[end] >> 1);
        bool unknown = memory.pieces[end] & 1, more = unknown && start && memory.pieces[start] & 1;
        if (unknown && !unknown_end) unknown_end = end;
        if (more) continue;
        size_t until = unknown ? unknown_end : end;
        if (!add_backwards({text.data + start, until - start}, word, to)) return false;
        unknown_end = 0;
    }
    for (size_t left = first, right = to.size(); left + 1 < right; left++) {
        Token last = to[--right];
        to[right] = to[left], to[left] = last;
    }
    return true;
}

// If scores are equal, the one found first stays. The search goes from left to right and from short to long.
bool Unigram::find_best(Span text, Memory &memory) const {
    size_t places = 8;  // more places than there are from the beginning of a piece to its end
    while (places <= longest_ && places <= text.size) places *= 2;
    if (text.size >= UINT32_MAX / 2 || !memory.scores.resize(places)) return false;
    memory.pieces.clear();
    if (!memory.pieces.resize(text.size + 1)) return false;  // 0: there is no way yet
    double *scores = memory.scores.data(), here;
    auto offer = [&](size_t start, size_t end, double score, bool unknown) {
        uint32_t &piece = memory.pieces[end];
        double &best = scores[end & (places - 1)];
        if (piece && !(here + score > best)) return;
        piece = uint32_t(end - start) << 1 | unknown, best = here + score;
    };
    for (size_t start = 0, next; start < text.size; start = next) {
        uint32_t code, node = Trie::ROOT;
        next = start + decode(text.data + start, text.data + text.size, code);
        here = start ? scores[start & (places - 1)] : 0;
        size_t last = text.size - start < longest_ ? text.size : start + longest_;
        bool alone = false;
        for (size_t end = start; end < last;) {
            node = trie_.child(node, text.data[end++]);
            if (node == Trie::NOWHERE) break;
            if (!trie_.ends(node)) continue;
            uint32_t id = trie_.value(node);
            offer(start, end, scores_[id], id == unknown_);
            alone = alone || end == next;
        }
        if (!alone) offer(start, next, unknown_score_, true);
    }
    return true;
}

bool Unigram::add_backwards(Span piece, uint32_t word, Array<Token> &to) const {
    uint32_t node = trie_.walk(Trie::ROOT, piece);
    if (node != Trie::NOWHERE && trie_.ends(node)) return to.push({int32_t(trie_.value(node)), word});
    if (!has_bytes(piece)) return to.push({int32_t(unknown_), word});
    for (size_t at = piece.size; at--;)
        if (!to.push({int32_t(bytes_[uint8_t(piece.data[at])]), word})) return false;
    return true;
}

bool Unigram::has_bytes(Span piece) const {
    for (size_t at = 0; at < piece.size && bytes_.count; at++)
        if (bytes_[uint8_t(piece.data[at])] == NONE) return false;
    return bytes_.count;
}

}  // namespace hfx
