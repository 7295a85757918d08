// The rows of a product as bytes, which the threads that multiply them make first.
#pragma once
#include <sched.h>
#include "context.h"
#include "processor.h"

namespace hfx {

struct Quantizing {
    const float *x;
    const int32_t *places;  // the number of each row in x; null: row i is row i of x
    const Weights *weights;
    uint8_t *rows;
    float *scale;
    long count;
};

inline void quantize_row(void *data, size_t row) {
    const Quantizing &q = *static_cast<Quantizing *>(data);
    const Weights &w = *q.weights;
    const float *x = q.x + (q.places ? size_t(q.places[row]) : row) * size_t(w.inputs);
    uint8_t *bytes = q.rows + row * size_t(w.depth);
    if (!w.block) {
        q.scale[row] = chosen->quantize(x, w.inputs, w.depth, bytes);
        return;
    }
    float *scale = q.scale + row * size_t(w.blocks());
    for (long at = 0; at < w.depth; at += w.block) {
        const long left = w.inputs - at, inputs = left < 0 ? 0 : left < w.block ? left : w.block;
        *scale++ = chosen->quantize(x + (inputs ? at : 0), inputs, w.block, bytes + at) / UNPACKED;
    }
}

// Rows that all tasks of a product read, and that these tasks quantize themselves, some rows at a time. If one thread did
// it, the other threads would wait, and it would wait for lines that they have read; a parallel run for it alone would
// cost more than it saves. Threads write `next` and `done`, which therefore have lines of their own.
struct SharedRows {
    static constexpr int MOST_TURNS = 200;  // about 10 microseconds

    alignas(64) Quantizing rows;
    alignas(64) long next;
    alignas(64) long done;

    // Quantizes rows that no thread has taken, and waits for the others.
    void quantize() {
        if (__atomic_load_n(&done, __ATOMIC_ACQUIRE) == rows.count) return;
        // Few parts, as a line takes up to a microsecond from one core to another where a hypervisor puts them far apart.
        const long parts = rows.count < 64 ? 4 : 8, some = (rows.count + parts - 1) / parts;
        long mine = 0;
        for (long row; (row = __atomic_fetch_add(&next, some, __ATOMIC_RELAXED)) < rows.count;) {
            const long end = smaller(row + some, rows.count);
            for (long i = row; i < end; i++) quantize_row(&rows, size_t(i));
            mine += end - row;
        }
        if (mine) __atomic_fetch_add(&done, mine, __ATOMIC_RELEASE);
        for (int turn = 0; __atomic_load_n(&done, __ATOMIC_ACQUIRE) < rows.count; turn++)
            if (turn < MOST_TURNS) relax();
            else sched_yield();  // the other thread has lost its core
    }
};

}  // namespace hfx
