// A trial multiplies a panel of pseudorandom bytes by numbers of rows that fill a block of tiles, or leave one nearly
// empty. From memory, it multiplies a matrix whose weights were flushed from all caches.
//
// Sums of bytes are exact, and the code behind them is the same, so the choice changes no result. Results are compared
// all the same, because only a run on this processor can show whether its tiles are right.
#include "trial.h"
#include "processor.h"
#include <sys/mman.h>
#include <time.h>

namespace hfx {
namespace {

constexpr long DEPTH = 256, MOST_ROWS = 33;
constexpr long COUNTS[] = {1, 8, 16, 17, 32, MOST_ROWS};
constexpr int TURNS = 20;

struct Data {
    alignas(64) uint8_t rows[MOST_ROWS * DEPTH];
    alignas(64) int8_t values[DEPTH * COLUMNS];
    alignas(64) int32_t start[COLUMNS] = {};
    alignas(64) float scale[COLUMNS], bias[COLUMNS];
    float row_scale[MOST_ROWS];
    Weights weights = {DEPTH, DEPTH, 1, 0, values, scale, bias, start};

    Data() {
        uint32_t state = 1;
        auto byte = [&state] { return uint8_t((state = state * 1664525u + 1013904223u) >> 24); };
        for (uint8_t &row : rows) row = byte();
        for (long i = 0; i < DEPTH * COLUMNS; i++) {
            values[i] = int8_t(byte() % 255 - 127);
            start[i / GROUP % COLUMNS] -= 128 * values[i];
        }
        for (int i = 0; i < COLUMNS; i++) scale[i] = float(1 + byte()) / 256, bias[i] = float(byte()) / 256;
        for (float &each : row_scale) each = float(1 + byte()) / 256;
    }
};

struct Result {
    alignas(64) float y[MOST_ROWS * COLUMNS] = {};
    float best[MOST_ROWS] = {};
    int32_t column[MOST_ROWS] = {};
};

Product product(const Data &data, long count, float *y) {
    Product p = {};
    p.weights = &data.weights, p.rows = data.rows, p.row_scale = data.row_scale, p.count = count;
    p.y = y, p.outputs = COLUMNS;
    return p;
}

Result result(const Kernels &kernels, const Data &data, long count) {
    Result made;
    kernels.panel(product(data, count, made.y), 0);
    kernels.best(product(data, count, nullptr), 0, 1, made.best, made.column);
    return made;
}

// The time of this thread alone: other work on a busy machine decides nothing.
template <typename Work> long nanoseconds(Work work) {
    timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    work();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec;
}
long nanoseconds(const Kernels &kernels, const Product &p) {
    return nanoseconds([&] {
        for (long panel = 0; panel < p.weights->panels; panel++) kernels.panel(p, panel);
    });
}

bool equal(const Kernels &tried, const Kernels &known, const Data &data) {
    for (long count : COUNTS) {
        Result mine = result(tried, data, count), other = result(known, data, count);
        if (memcmp(mine.y, other.y, sizeof mine.y) || memcmp(mine.best, other.best, sizeof mine.best)) return false;
        if (memcmp(mine.column, other.column, sizeof mine.column)) return false;
    }
    return true;
}

// Compares the least times of the two, which are measured in turn.
bool faster(const Kernels &tried, const Kernels &known, const Data &data) {
    Result made;
    Product p = product(data, MOST_ROWS - 1, made.y);
    long least = nanoseconds(tried, p), other = nanoseconds(known, p);
    for (int turn = 1; turn < TURNS; turn++) {
        long mine = nanoseconds(tried, p), theirs = nanoseconds(known, p);
        if (mine < least) least = mine;
        if (theirs < other) other = theirs;
    }
    return least < other;
}

// A matrix of which every pass reads the weights from memory.
constexpr long STREAMED_DEPTH = 1024, STREAMED_PANELS = 16, STREAMED_BYTES = STREAMED_DEPTH * COLUMNS * STREAMED_PANELS;
constexpr long STREAMED_COLUMNS = STREAMED_PANELS * COLUMNS, STREAMED_COUNTS[] = {8, 16}, MOST_STREAMED = 16;
constexpr int STREAMED_TURNS = 3, CLEARLY = 20;

struct Streamed {
    int8_t values[STREAMED_BYTES];
    uint8_t rows[MOST_STREAMED * STREAMED_DEPTH];
    int32_t start[STREAMED_COLUMNS];
    float scale[STREAMED_COLUMNS], bias[STREAMED_COLUMNS], row_scale[MOST_STREAMED], y[MOST_STREAMED * STREAMED_COLUMNS];

    // The least time of each of the two kernels, which are measured in turn.
    void measure(const Kernels *const (&kernels)[2], long count, long (&least)[2]) {
        const Weights weights = {STREAMED_DEPTH, STREAMED_DEPTH, STREAMED_PANELS, 0, values, scale, bias, start};
        Product p = {};
        p.weights = &weights, p.rows = rows, p.row_scale = row_scale, p.count = count;
        p.y = y, p.outputs = STREAMED_COLUMNS;
        for (int turn = 0; turn < STREAMED_TURNS; turn++)
            for (int i = 0; i < 2; i++) {
                evict(values, STREAMED_BYTES);
                const long time = nanoseconds(*kernels[i], p);
                if (!turn || time < least[i]) least[i] = time;
            }
    }
};

// Whether `tried` is faster by a twentieth or more: a switch for less would follow the noise.
bool faster_from_memory(const Kernels &tried, const Kernels &known) {
    void *memory = mmap(nullptr, sizeof(Streamed), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    Streamed &streamed = *static_cast<Streamed *>(memory);
    memset(streamed.values, 1, sizeof streamed.values);  // pages that were not written are one page of zeros
    const Kernels *const kernels[] = {&tried, &known};
    long mine = 0, other = 0;
    for (long count : STREAMED_COUNTS) {
        long least[2];
        streamed.measure(kernels, count, least);
        mine += least[0], other += least[1];
    }
    munmap(memory, sizeof(Streamed));
    return mine * CLEARLY < other * (CLEARLY - 1);
}

// Splits pairs into numbers: the first numbers of `lanes` pairs, then their second numbers.
void split(const uint32_t *pairs, long count, long lanes, uint32_t *numbers) {
    for (long i = 0; i < count; i++) {
        const long at = i / lanes * 2 * lanes + i % lanes;
        numbers[at] = pairs[i] & 0xffff0000u, numbers[at + lanes] = pairs[i] << 16;
    }
}

}  // namespace

bool equal_and_faster_from_memory(const Kernels &tried, const Kernels &known) {
    Data data;
    return equal(tried, known, data) && faster_from_memory(tried, known);
}

bool equal_and_faster(const Kernels &tried, const Kernels &known) {
    Data data;
    return equal(tried, known, data) && faster(tried, known, data);
}

bool should_multiply_pairs(const FloatKernels &floats) {
    constexpr long PAIRS = 64, ROWS = MOST_PANEL_ROWS * PAIRS, ALL = ROWS + PANEL * PAIRS;
    if (!floats.pairs || !can_multiply_pairs()) return false;
    alignas(64) uint32_t pairs[ALL], numbers[2 * ALL], state = 1;
    alignas(64) float mine[MOST_PANEL_ROWS * PANEL], other[MOST_PANEL_ROWS * PANEL];
    for (uint32_t &pair : pairs) pair = ((state = state * 1664525u + 1013904223u) & 0x87ff87ffu) + 0x3c003c00u;  // from 2^-7 to 2^9
    split(pairs, ROWS, 1, numbers), split(pairs + ROWS, ALL - ROWS, MOST_DOTS, numbers + 2 * ROWS);
    const auto time = [](auto multiply, const uint32_t *from, long depth, float *out) {
        const float *rows = reinterpret_cast<const float *>(from);
        return nanoseconds([&] { multiply(Panels{rows, rows + MOST_PANEL_ROWS * depth, nullptr, depth, MOST_PANEL_ROWS, out}); });
    };
    long least[2];
    for (int turn = 0; turn < TURNS; turn++) {
        const long times[] = {time(floats.pairs, pairs, PAIRS, mine), time(floats.panels, numbers, 2 * PAIRS, other)};
        for (int i = 0; i < 2; i++) least[i] = turn && least[i] < times[i] ? least[i] : times[i];
    }
    return !memcmp(mine, other, sizeof mine) && least[0] < least[1];
}

}  // namespace hfx
