#include "bpe.h"

namespace hfx {

const char *BytePairs::open(const File &file, const Step &step, uint32_t tokens) {
    const char *damaged = "its BPE model is damaged";
    uint64_t section = step.section;
    if (!whole_.open(file, section, tokens) || !file.read(section + 2, merges_) || !file.read(section + 3, bytes_))
        return damaged;
    fuse_ = step.flags & 1, unknown_ = step.value;
    if (bytes_.count != 256 || (unknown_ != NONE && unknown_ >= tokens)) return damaged;
    uint32_t bits = 0;
    while (bits < 32 && size_t(1) << bits < merges_.count) bits++;
    if (!bits || size_t(1) << bits != merges_.count) return damaged;
    shift_ = 64 - bits;
    bool free = false;  // whether there is a free entry, at which a search ends
    for (const Merge &merge : merges_) {
        free = free || merge.left == NONE;
        if (merge.left != NONE && merge.id >= tokens) return damaged;
    }
    for (uint32_t id : bytes_)
        if (id != NONE && id >= tokens) return damaged;
    return free ? nullptr : damaged;
}

const BytePairs::Merge *BytePairs::find(uint32_t left, uint32_t right) const {
    uint64_t key = uint64_t(left) << 32 | right;
    for (size_t at = key * 0x9e3779b97f4a7c15u >> shift_;; at = (at + 1) & (merges_.count - 1)) {
        const Merge &merge = merges_[at];
        if (merge.left == NONE) return nullptr;
        if (merge.left == left && merge.right == right) return &merge;
    }
}

bool BytePairs::encode(Span piece, uint32_t number, Array<Token> &to, Memory &memory) const {
    uint32_t node = whole_.walk(Trie::ROOT, piece);
    if (whole_.ends(node)) return to.push({int32_t(whole_.value(node)), number});
    if (piece.size >= NONE || !read_symbols(piece, memory) || !merge(memory)) return false;
    if (memory.symbols.empty()) return true;
    for (uint32_t at = 0; at != NONE; at = memory.symbols[at].behind)
        if (!to.push({int32_t(memory.symbols[at].id), number})) return false;
    return true;
}

bool BytePairs::read_symbols(Span piece, Memory &memory) const {
    auto &symbols = memory.symbols;
    symbols.clear();
    if (!symbols.reserve(piece.size)) return false;
    bool unknown = false;  // whether the last byte was unknown
    for (size_t at = 0; at < piece.size; at++) {
        uint32_t id = bytes_[uint8_t(piece.data[at])];
        bool joins = unknown && fuse_;
        unknown = id == NONE;
        if (unknown && (joins || unknown_ == NONE)) continue;
        uint32_t count = uint32_t(symbols.size());
        if (!symbols.push({unknown ? unknown_ : id, count - 1, count + 1})) return false;
    }
    if (!symbols.empty()) symbols[symbols.size() - 1].behind = NONE;
    return true;
}

// Adds the merge of the symbol at `at` with the symbol behind it to the heap, if there is such a merge.
bool BytePairs::offer(uint32_t at, Memory &memory) const {
    uint32_t behind = memory.symbols[at].behind;
    const Merge *merge = behind == NONE ? nullptr : find(memory.symbols[at].id, memory.symbols[behind].id);
    if (!merge) return true;
    auto &heap = memory.heap;
    Memory::Candidate candidate{merge->rank, at, merge->id};
    if (!heap.push(candidate)) return false;
    size_t child = heap.size() - 1;
    for (; child && candidate < heap[(child - 1) / 2]; child = (child - 1) / 2) heap[child] = heap[(child - 1) / 2];
    heap[child] = candidate;
    return true;
}

static BytePairs::Memory::Candidate take_least(Array<BytePairs::Memory::Candidate> &heap) {
    auto least = heap[0], last = heap[heap.size() - 1];
    size_t count = heap.size() - 1, parent = 0;
    for (size_t child; (child = 2 * parent + 1) < count; parent = child) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (!(heap[child] < last)) break;
        heap[parent] = heap[child];
    }
    heap[parent] = last;
    heap.shorten(count);
    return least;
}

// Merges symbols by rank, and from the left if ranks are equal. A candidate that earlier merges have made invalid is
// dropped when it is taken from the heap.
bool BytePairs::merge(Memory &memory) const {
    constexpr uint32_t GONE = NONE - 1;
    auto &symbols = memory.symbols;
    memory.heap.clear();
    for (uint32_t at = 0; at < symbols.size(); at++)
        if (!offer(at, memory)) return false;
    while (!memory.heap.empty()) {
        auto [rank, at, id] = take_least(memory.heap);
        uint32_t right = symbols[at].behind;
        if (right == NONE || right == GONE) continue;
        const Merge *still = find(symbols[at].id, symbols[right].id);
        if (!still || still->id != id) continue;
        uint32_t behind = symbols[right].behind;
        symbols[at].id = id, symbols[at].behind = behind, symbols[right].behind = GONE;
        if (behind != NONE) symbols[behind].before = at;
        if (at && !offer(symbols[at].before, memory)) return false;
        if (!offer(at, memory)) return false;
    }
    return true;
}

}  // namespace hfx
