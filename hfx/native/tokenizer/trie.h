// A trie of bytes, whose edges are in one hash table with linear probing: one lookup a byte, and no pointers.
#pragma once
#include "file.h"

namespace hfx {

class Trie {
public:
    static constexpr uint32_t ROOT = 0, NOWHERE = ~0u;

    // Sections {EDGES, VALUES}: the edges by hash, as {node << 8 | byte, child}, where free entries have a child of 0;
    // and the values, all below `limit`, of nodes 1, 2, ..., which are the nodes where a text ends.
    [[nodiscard]] bool open(const File &file, uint64_t section, uint32_t limit) {
        if (!file.read(section, edges_) || !file.read(section + 1, values_)) return false;
        size_t bits = 0;
        while (bits < 31 && size_t(1) << bits < edges_.count) bits++;
        if (!bits || size_t(1) << bits != edges_.count) return false;
        shift_ = 32 - uint32_t(bits), mask_ = uint32_t(edges_.count - 1);
        bool free = false;  // whether there is a free entry, at which a search ends
        for (const Edge &edge : edges_) free = free || !edge.child;
        for (uint32_t value : values_)
            if (value >= limit) return false;
        return free;
    }

    uint32_t child(uint32_t node, char byte) const {
        uint32_t key = node << 8 | uint8_t(byte);
        for (uint32_t at = key * 0x9e3779b1u >> shift_;; at = (at + 1) & mask_) {
            if (!edges_[at].child) return NOWHERE;
            if (edges_[at].key == key) return edges_[at].child;
        }
    }
    // Whether a text ends at `node`, and the value of that text.
    bool ends(uint32_t node) const { return node - 1 < values_.count; }
    uint32_t value(uint32_t node) const { return values_[node - 1]; }

    // The node that `text` leads to from `node`, or NOWHERE.
    uint32_t walk(uint32_t node, Span text) const {
        for (size_t at = 0; at < text.size && node != NOWHERE; at++) node = child(node, text.data[at]);
        return node;
    }

private:
    struct Edge {
        uint32_t key, child;
    };
    View<Edge> edges_;
    View<uint32_t> values_;
    uint32_t shift_ = 0, mask_ = 0;
};

}  // namespace hfx
