// AMX: one instruction multiplies a tile of 16 rows x 64 inputs by a tile of 64 inputs x 16 columns, 16,384 products.
//
// The sums of 32 rows x 32 columns take four tiles, rows take two tiles, and weights two; a panel is two halves of 32
// columns. Few rows fill tiles badly: products of up to FEW_ROWS rows are computed with AVX512-VNNI.
#include "processor.h"
#include "product.h"
#ifdef HFX_EMULATED_TILES  // tests on processors without AMX
#include HFX_EMULATED_TILES
#else
#include <immintrin.h>
#endif

namespace hfx {
namespace {

constexpr int TILE = 16, LINE = 64;
constexpr long FEW_ROWS = 7;
constexpr int SUMS = 0, ROWS_AT = 4, WEIGHTS_AT = 6;  // numbers of the first tile of each kind

struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

struct Block {
    using Int4 = Unpacking<Block>;
    static constexpr int ROWS = 128;  // their sums of a panel take 32 KB
    long count, stride, depth;
    int configured = 0;

    Block(long count, long stride, long depth) : count(count), stride(stride), depth(depth) {}
    ~Block() { _tile_release(); }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;

    int rows(long first) const { return int(count - first < ROWS ? count - first : ROWS); }

    // The weights of half a panel stay in the first-level cache while all rows are multiplied by them.
    void run(int rows, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) {
        const int whole = rows / (2 * TILE) * (2 * TILE);
        if (whole) run_alike(whole, 2 * TILE, q, w, start, sums);
        if (whole < rows) run_alike(rows - whole, rows - whole, q + whole * stride, w, start, sums + whole * COLUMNS);
    }

    void run_alike(int rows, int step, const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) {
        if (step != configured) configure(step);
        for (long column = 0; column < COLUMNS; column += COLUMNS / 2)
            for (int row = 0; row < rows; row += step) {
                if (step > TILE) sum<true>(q + row * stride, w + column * GROUP, start + column, sums + row * COLUMNS + column);
                else sum<false>(q + row * stride, w + column * GROUP, start + column, sums + row * COLUMNS + column);
            }
    }

    // Gives the tiles of sums and of rows as many lines as there are rows, so that nothing behind the last row is read
    // or written.
    void configure(int rows) {
        Config config;
        int first = rows < TILE ? rows : TILE, second = rows - first;
        auto set = [&config](int tile, int lines) {
            config.rows[tile] = uint8_t(lines);
            config.bytes[tile] = lines ? LINE : 0;
        };
        set(SUMS, first), set(SUMS + 1, first), set(ROWS_AT, first);
        set(SUMS + 2, second), set(SUMS + 3, second), set(ROWS_AT + 1, second);
        set(WEIGHTS_AT, TILE), set(WEIGHTS_AT + 1, TILE);
        _tile_loadconfig(&config);
        configured = rows;
    }

    template <bool Both> void sum(const uint8_t *q, const int8_t *w, const int32_t *start, int32_t *sums) const {
        constexpr long WEIGHT_STRIDE = COLUMNS * GROUP, SUM_STRIDE = COLUMNS * 4;
        _tile_loadd(SUMS, start, 0);  // a stride of 0 loads the same line for each row
        _tile_loadd(SUMS + 1, start + TILE, 0);
        if constexpr (Both) {
            _tile_loadd(SUMS + 2, start, 0);
            _tile_loadd(SUMS + 3, start + TILE, 0);
        }
        for (long k = 0; k < depth; k += LINE, w += LINE / GROUP * WEIGHT_STRIDE) {
            _tile_loadd(WEIGHTS_AT, w, WEIGHT_STRIDE);
            _tile_loadd(WEIGHTS_AT + 1, w + TILE * GROUP, WEIGHT_STRIDE);
            _tile_loadd(ROWS_AT, q + k, stride);
            _tile_dpbusd(SUMS, ROWS_AT, WEIGHTS_AT);
            _tile_dpbusd(SUMS + 1, ROWS_AT, WEIGHTS_AT + 1);
            if constexpr (Both) {
                _tile_loadd(ROWS_AT + 1, q + TILE * stride + k, stride);
                _tile_dpbusd(SUMS + 2, ROWS_AT + 1, WEIGHTS_AT);
                _tile_dpbusd(SUMS + 3, ROWS_AT + 1, WEIGHTS_AT + 1);
            }
        }
        _tile_stored(SUMS, sums, SUM_STRIDE);
        _tile_stored(SUMS + 1, sums + TILE, SUM_STRIDE);
        if constexpr (Both) {
            _tile_stored(SUMS + 2, sums + TILE * COLUMNS, SUM_STRIDE);
            _tile_stored(SUMS + 3, sums + TILE * COLUMNS + TILE, SUM_STRIDE);
        }
    }
};

// Whether tiles are used: for more than FEW_ROWS rows, and for int4 only if a block fills whole lines of a tile.
bool fills_tiles(const Product &p) { return p.count > FEW_ROWS && p.weights->block % LINE == 0; }

void panel(const Product &p, long index) {
    if (!fills_tiles(p)) AVX512_VNNI.panel(p, index);
    else multiply_panel<Block>(p, index);
}

void best_panels(const Product &p, long first, long last, float *values, int32_t *columns) {
    if (!fills_tiles(p)) AVX512_VNNI.best(p, first, last, values, columns);
    else best<Block>(p, first, last, values, columns);
}

}  // namespace

const Kernels AMX_INT8 = {"amx-int8", quantize, unpack, panel, best_panels, &FLOATS_AVX512};

}  // namespace hfx
