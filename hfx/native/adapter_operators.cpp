// The operators for adapters on a shared backbone: LowRank adds an adapter's product of a low rank to a product of the
// backbone, and AdapterLinear is a linear whose weights are an adapter's own, such as a head. Int8LowRank and
// Int8AdapterLinear are the same for weights in int8, whose bytes lie in the pool in the place of floats.
//
// Each row of a batch names its adapter by a slot of the pool, which has the numbers of all adapters, [slots, stride].
// A row's result is the same, to the bit, beside any other rows. Adapters, ranks and the pool are read at each run. If
// another thread overwrites a rank by an invalid number during a run, the run computes with rank 0.
#include "floats.h"
#include "context.h"

namespace hfx {
namespace {

enum class Kind { low_rank, linear };

struct Form : Described {
    Kind kind;
    bool residual;
    Activation activation;
    Stored stored;

    bool int8() const { return stored == Stored::int8; }
    // The numbers of a slot that `count` weights take.
    long numbers(long count) const { return (count * long(bytes_of(stored)) + 3) / 4; }

    // The indices of inputs. Behind them are the pool and, for a product of a low rank, the last tokens of texts.
    size_t adapter() const { return kind == Kind::linear ? 1 : residual ? 3 : 2; }
    size_t pool() const { return adapter() + 1; }
    size_t last() const { return kind == Kind::linear ? 0 : pool() + 1; }

    size_t inputs() const { return pool() + (last() ? 2 : 1); }
    int type(size_t input) const { return input == adapter() || is_optional(input) ? ort::INT32 : ort::FLOAT; }
    bool is_optional(size_t input) const { return input && input == last(); }
};

constexpr int MOST_PARTS = 3;
constexpr long HEADER = 16;  // numbers before the weights of a part, of which the first is the adapter's rank

// Columns of a product that have weights of their own: in a slot, a header, the scales of the ranks if the weights are
// int8, A and B.
struct Part {
    int64_t columns, room;  // `room` is the greatest rank of an adapter, and 0 if the part has no adapters
    long place, a, b;       // of the header in a slot, and of A and B behind the header's begin
};

struct Node {
    const Form *form;
    int64_t inputs, outputs, offset;
    Part parts[MOST_PARTS];  // of a product of a low rank
    long end;                // of the node's numbers in a slot
};

// ---- creating a node

// Limits far beyond any model, within which no size overflows.
constexpr int64_t MOST_NUMBERS = 1l << 28, MOST_OFFSET = 1l << 48;

Status *read_size(const ort::KernelInfo *info, const char *name, int64_t least, int64_t most, int64_t &out) {
    HFX_TRY(api->attribute(info, name, &out));
    return least <= out && out <= most ? nullptr : invalid("hfx: an attribute of an adapter's product is out of range");
}

Status *read_parts(const ort::KernelInfo *info, Node &node) {
    constexpr const char *COLUMN_NAMES[] = {"columns0", "columns1", "columns2"}, *RANK_NAMES[] = {"rank0", "rank1", "rank2"};
    for (int i = 0; i < MOST_PARTS; i++) {
        Part &part = node.parts[i];
        HFX_TRY(read_size(info, COLUMN_NAMES[i], 0, MOST_NUMBERS, part.columns));
        HFX_TRY(read_size(info, RANK_NAMES[i], 0, part.columns ? MOST_LOW_RANK : 0, part.room));
        part.place = node.end, node.outputs += part.columns;
        part.a = HEADER + (node.form->int8() ? part.room : 0);
        part.b = part.a + node.form->numbers(part.room * node.inputs);
        if (part.room) node.end += part.b + node.form->numbers(part.room * part.columns);
    }
    return nullptr;
}

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    Node made = {};
    made.form = &as<Form>(op);
    HFX_TRY(read_size(info, "in_features", 1, MOST_NUMBERS, made.inputs));
    HFX_TRY(read_size(info, "offset", 0, MOST_OFFSET, made.offset));
    made.end = made.offset;
    if (made.form->kind == Kind::low_rank) {
        HFX_TRY(read_parts(info, made));
    } else {
        HFX_TRY(read_size(info, "out_features", 1, MOST_NUMBERS, made.outputs));
        made.end += made.outputs * (made.form->int8() ? 2 : 1) + made.form->numbers(made.outputs * made.inputs);
    }
    return store(made, out);
}

// ---- running a node

// The rank in a header, or -1 if the number there is no rank.
long rank_at(const float *header, long room) {
    const float rank = header[0];
    if (!(rank >= 0 && rank <= float(room))) return -1;
    return float(long(rank)) == rank ? long(rank) : -1;
}

struct Run {
    const Node *node;
    const float *x, *base, *residual, *pool;
    float *y;
    const int32_t *adapters, *last;  // `last` may be null
    long rows, tokens, stride;       // rows of x in all and of each text, and numbers of a slot
    bool shared;                     // whether all texts have the first adapter
    long rows_a_task, columns;       // columns: the tasks of the same rows

    int32_t adapter(long row) const { return adapters[shared ? 0 : row / tokens]; }
    bool padding(long row) const { return last && row % tokens > last[row / tokens]; }
    const float *slot(long row) const { return pool + adapter(row) * stride; }
    // The number of rows from `row` on, up to before `end`, with the same adapter, and all tokens or all padding.
    long alike(long row, long end) const {
        long at = row + 1;
        while (at < end && adapter(at) == adapter(row) && padding(at) == padding(row)) at++;
        return at - row;
    }
};

void run_low_rank(void *data, size_t task) {
    const Run &run = *static_cast<Run *>(data);
    const Node &node = *run.node;
    const long first = long(task) * run.rows_a_task, end = smaller(first + run.rows_a_task, run.rows);
    for (long row = first, count; row < end; row += count) {
        count = run.alike(row, smaller(end, row + MOST_LOW_RANK_ROWS));
        if (run.padding(row)) {
            memset(run.y + row * node.outputs, 0, size_t(count * node.outputs) * sizeof(float));
            continue;
        }
        const float *slot = run.slot(row);
        long place = row * node.outputs;
        for (const Part &part : node.parts) {
            const float *header = slot + part.place;
            const long known = part.room ? rank_at(header, part.room) : 0, rank = known < 0 ? 0 : known;
            const float *scales = node.form->int8() ? header + HEADER : nullptr, *residual = run.residual ? run.residual + place : nullptr;
            chosen->floats->low_rank({run.x + row * node.inputs, node.form->stored, header + part.a, header + part.b, scales, run.base + place, residual,
                                      run.y + place, node.inputs, rank, part.columns, node.outputs, int(count), node.form->activation});
            place += part.columns;
        }
    }
}

// The numbers of a linear in a slot, from one of its outputs on: the weights and the biases, or, with int8, the scales of
// the outputs, the biases and the weights.
struct Own {
    const float *scales, *biases;  // the scales are null for floats
    const void *weights;

    Own(const Node &node, const float *at, long column) {
        const bool int8 = node.form->int8();
        scales = int8 ? at + column : nullptr;
        biases = at + (int8 ? node.outputs : node.outputs * node.inputs) + column;
        weights = reinterpret_cast<const char *>(int8 ? at + 2 * node.outputs : at) + column * node.inputs * long(bytes_of(node.form->stored));
    }
};

void run_linear(void *data, size_t task) {
    const Run &run = *static_cast<Run *>(data);
    const Node &node = *run.node;
    const long first = long(task) / run.columns * run.rows_a_task, end = smaller(first + run.rows_a_task, run.rows);
    const long column = long(task) % run.columns * MOST_DOTS, outputs = smaller(node.outputs - column, MOST_DOTS);
    float sums[MOST_DOT_ROWS * MOST_DOTS] = {};
    for (long row = first, count; row < end; row += count) {
        count = run.alike(row, smaller(end, row + MOST_DOT_ROWS));
        const Own own(node, run.slot(row) + node.offset, column);
        chosen->floats->dots({run.x + row * node.inputs, own.weights, node.inputs, node.inputs, int(count), int(outputs), sums, node.form->stored});
        for (long i = 0; i < count && own.scales; i++)
            for (long j = 0; j < outputs; j++) sums[i * MOST_DOTS + j] *= own.scales[j];
        float *y = run.y + row * node.outputs + column;
        chosen->floats->finish({sums, own.biases, nullptr, y, nullptr, MOST_DOTS, node.outputs, outputs, int(count), node.form->activation});
    }
}

bool same(const Shape &a, const Shape &b) { return a.rank == b.rank && !memcmp(a.sizes, b.sizes, a.rank * sizeof(int64_t)); }

Status *read_adapters(ort::KernelContext *context, const Shape &x, Run &run) {
    const Node &node = *run.node;
    Tensor adapter, pool;
    HFX_TRY(read_input(context, node.form->adapter(), adapter));
    HFX_TRY(read_input(context, node.form->pool(), pool));
    if (adapter.shape.rank != 1 || (adapter.shape.sizes[0] != 1 && adapter.shape.sizes[0] != x.sizes[0]))
        return invalid("hfx: there must be an adapter for each row, or one for all rows");
    if (pool.shape.rank != 2 || node.end > pool.shape.sizes[1]) return invalid("hfx: the adapters' weights must be [slots, stride], with room for this product");
    run.adapters = adapter.as<int32_t>(), run.shared = adapter.shape.sizes[0] == 1;
    run.pool = pool.as<float>(), run.stride = pool.shape.sizes[1];
    HFX_TRY(check_range(adapter, 0, pool.shape.sizes[0], "hfx: the adapter of a row is beyond the slots"));
    for (long i = 0; i < adapter.shape.sizes[0]; i++)
        for (const Part &part : node.parts)
            if (part.room && rank_at(run.pool + run.adapters[i] * run.stride + part.place, part.room) < 0) return invalid("hfx: the rank of an adapter must be a whole number within its room");
    return nullptr;
}

// Reads what a product of a low rank is added to, and the last tokens of texts.
Status *read_base(ort::KernelContext *context, const Shape &x, Run &run) {
    const Form &form = *run.node->form;
    Tensor base, residual, last;
    Shape y = x;
    y.sizes[y.rank - 1] = run.node->outputs;
    HFX_TRY(read_input(context, 1, base));
    if (!same(base.shape, y)) return invalid("hfx: the base doesn't fit the rows and the columns");
    run.base = base.as<float>();
    if (form.residual) {
        HFX_TRY(read_input(context, 2, residual));
        if (!same(residual.shape, y)) return invalid("hfx: the residual doesn't fit the product");
        run.residual = residual.as<float>();
    }
    HFX_TRY(read_optional_input(context, form.last(), last));
    if (!last.data) return nullptr;
    if (x.rank != 3 || last.shape.elements() != x.sizes[0]) return invalid("hfx: there must be a last token for each text");
    run.last = last.as<int32_t>();
    return check_range(last, 0, run.tokens, "hfx: a last token is beyond its text");
}

constexpr long LOW_RANK_ROWS_A_TASK = 2 * MOST_LOW_RANK_ROWS, DOT_ROWS_A_TASK = 32;

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    const bool linear = node.form->kind == Kind::linear;
    Tensor x;
    HFX_TRY(read_input(context, 0, x));
    if (x.shape.rank < 2 || x.shape.last() != node.inputs) return invalid("hfx: the rows don't fit the weights");
    Run run = {};
    run.node = &node, run.x = x.as<float>(), run.rows = x.shape.rows(), run.tokens = x.shape.sizes[0] ? run.rows / x.shape.sizes[0] : 0;
    HFX_TRY(read_adapters(context, x.shape, run));
    if (!linear) HFX_TRY(read_base(context, x.shape, run));
    HFX_TRY(make_output(context, 0, x.shape, node.outputs, reinterpret_cast<void **>(&run.y)));
    run.rows_a_task = linear ? DOT_ROWS_A_TASK : LOW_RANK_ROWS_A_TASK;
    run.columns = linear ? (node.outputs + MOST_DOTS - 1) / MOST_DOTS : 1;
    const long tasks = (run.rows + run.rows_a_task - 1) / run.rows_a_task * run.columns;
    const long numbers = run.rows * (linear ? node.inputs * run.columns : node.inputs + node.outputs);
    return run_tasks(context, linear ? run_linear : run_low_rank, tasks, numbers, &run);
}

Form forms[2 * (2 * ACTIVATION_COUNT + 1)];

}  // namespace

Status *add_adapter_operators(ort::Domain *domain) {
    Form *op = forms;
    for (int int8 = 0; int8 < 2; int8++) {
        const Stored stored = int8 ? Stored::int8 : Stored::float32;
        *op++ = {titled(int8 ? "Int8LowRankAdd" : "LowRankAdd", ""), Kind::low_rank, true, Activation::none, stored};
        for (const auto &each : ACTIVATIONS) {
            *op++ = {titled(int8 ? "Int8LowRank" : "LowRank", each.suffix), Kind::low_rank, false, each.activation, stored};
            *op++ = {titled(int8 ? "Int8AdapterLinear" : "AdapterLinear", each.suffix), Kind::linear, false, each.activation, stored};
        }
    }
    return add_operators(domain, forms, sizeof forms / sizeof *forms, create, compute, free);
}

}  // namespace hfx
