// Scores with a mask of the allowed tokens: one bit for each token, the lowest bit first, in whole words of 32 bits.
#pragma once
#include "floats.h"
#include "simd.h"

namespace hfx {
namespace {

const Ints LANE_NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Calls each(index of the first score, bits) for 16 scores at a time.
template <typename Each> inline void each_bits(const uint8_t *allowed, long count, Each each) {
    for (long at = 0; at < count; at += WIDTH) {
        uint16_t bits;
        memcpy(&bits, allowed + at / 8, sizeof bits);
        each(at, bits);
    }
}
inline Ints lanes_of(uint16_t bits) { return ((Ints{} + bits) >> LANE_NUMBERS & 1) != 0; }

long best_allowed(const float *scores, const uint8_t *allowed, long count) {
    Floats best = all(-__builtin_inff());
    Ints place = Ints{} - 1;
    each_bits(allowed, count, [&](long at, uint16_t bits) {
        if (!bits) return;
        const Floats v = count - at < WIDTH ? load_some(scores + at, int(count - at)) : load<Floats>(scores + at);
        const Ints places = LANE_NUMBERS + int(at);
        const Ints better = lanes_of(bits) & (places < int(count)) & ((v > best) | (v != v));
        best = better ? v : best;
        place = better ? places : place;
    });
    int found = -1;
    float value = 0;
    for (int i = 0; i < WIDTH; i++) {
        const float v = best[i];
        const bool first = found < 0 || v > value || v != v || (v == value && place[i] < found);
        if (place[i] >= 0 && first) found = place[i], value = v;
    }
    return found;
}

void forbid(float *scores, const uint8_t *allowed, long count) {
    each_bits(allowed, count, [&](long at, uint16_t bits) {
        const int left = count - at < WIDTH ? int(count - at) : WIDTH;
        if (bits == 0xffff) return;
        store_some(scores + at, lanes_of(bits) ? load_some(scores + at, left) : all(-__builtin_inff()), left);
    });
}

}  // namespace
}  // namespace hfx
