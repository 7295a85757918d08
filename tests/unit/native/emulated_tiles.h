// The tile instructions of AMX in plain C++, for processors without them (Intel's manual, volume 2: TILELOADD, TDPBUSD).
//
// What a processor would refuse ends the process: a configuration beyond a tile's 16 lines of 64 bytes, a tile that is
// not configured, and factors whose shapes do not fit. Lines beyond the memory that was given are the sanitizers' and
// guard pages' to find: only configured lines are touched.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr int MOST_LINES = 16, MOST_BYTES = 64, TILES = 8;

struct Tile {
    int lines, bytes;
    uint8_t values[MOST_LINES][MOST_BYTES];
};
thread_local Tile tiles[TILES];

inline void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "emulated tiles: %s\n", what);
    abort();
}

inline Tile &configured(int number) {
    need(number >= 0 && number < TILES && tiles[number].lines, "a tile is not configured");
    return tiles[number];
}

inline void _tile_loadconfig(const void *config) {
    const uint8_t *bytes = static_cast<const uint8_t *>(config);
    need(bytes[0] == 1 && bytes[1] == 0, "the palette is not 1, or the start row not 0");
    for (int i = 2; i < 16; i++) need(bytes[i] == 0, "reserved bytes are not 0");
    for (int i = 0; i < 16; i++) {
        uint16_t width;
        memcpy(&width, bytes + 16 + 2 * i, sizeof width);
        int lines = bytes[48 + i];
        need(!lines == !width, "a tile has lines without bytes, or bytes without lines");
        need(i < TILES || !lines, "there are 8 tiles");
        need(lines <= MOST_LINES && width <= MOST_BYTES && width % 4 == 0, "a tile is larger than 16 lines of 64 bytes");
        if (i < TILES) tiles[i] = {lines, width, {}};
    }
}

inline void _tile_release() {
    for (Tile &tile : tiles) tile = {};
}

inline void _tile_loadd(int number, const void *from, long stride) {
    Tile &tile = configured(number);
    for (int i = 0; i < tile.lines; i++)
        memcpy(tile.values[i], static_cast<const uint8_t *>(from) + i * stride, size_t(tile.bytes));
}

inline void _tile_stored(int number, void *to, long stride) {
    const Tile &tile = configured(number);
    for (int i = 0; i < tile.lines; i++)
        memcpy(static_cast<uint8_t *>(to) + i * stride, tile.values[i], size_t(tile.bytes));
}

// sums[m][n] += unsigned a[m][4k ... 4k + 3] * signed b[k][4n ... 4n + 3]; wraps as the processor does. Sanitizers
// leave out these loops of whole tiles: checked, they took a test of 130 rows over a minute on a busy machine.
__attribute__((no_sanitize("address", "undefined"))) inline void _tile_dpbusd(int sums, int left, int right) {
    Tile &c = configured(sums);
    const Tile &a = configured(left), &b = configured(right);
    need(a.lines == c.lines && b.bytes == c.bytes && a.bytes == 4 * b.lines, "the shapes of a product do not fit");
    for (int m = 0; m < c.lines; m++) {
        uint32_t line[MOST_BYTES / 4];
        memcpy(line, c.values[m], sizeof line);
        for (int k = 0; k < b.lines; k++)
            for (int n = 0; n < MOST_BYTES / 4; n++)
                for (int i = 0; i < 4; i++) line[n] += uint32_t(a.values[m][4 * k + i] * int8_t(b.values[k][4 * n + i]));
        memcpy(c.values[m], line, sizeof line);
    }
}

}  // namespace
