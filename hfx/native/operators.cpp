// The operators of the domain "hfx" for ONNX Runtime: Int8Linear and its variants with an activation, a gate or a
// residual, Int8Head, Int8Rows, and the same operators for int4.
//
// Weights, scales and biases are constants of the graph. Weights stay where ONNX Runtime has mapped them, unless
// hfx_huge_pages has turned on copies.
#include "context.h"
#include "floats.h"
#include "held.h"
#include "huge_pages.h"
#include "shared_rows.h"
#include <stdlib.h>

namespace hfx {

const Api *api;
ort::MemoryInfo *cpu_memory;
const Kernels *chosen;

namespace {

bool copies_weights;  // whether sessions that are created now copy their weights into huge pages

enum class Kind { linear, head, rows };

struct Form : Described {
    Kind kind;
    Activation activation;
    bool gated, residual, outliers, int4;

    // The index of a linear's optional input with the last tokens of texts; 0 for other kinds.
    size_t last_tokens() const { return kind != Kind::linear ? 0 : residual ? 5 : 4; }

    size_t inputs() const {
        if (kind == Kind::rows) return 3;
        if (kind == Kind::head) return outliers ? 7 : 5;
        return last_tokens() + 1;
    }
    int type(size_t input) const {
        if (input == 0 && kind == Kind::rows) return ort::INT64;
        if (input == 4 && kind == Kind::head) return ort::BOOL;
        if (is_optional(input)) return ort::INT32;
        return input != 1 ? ort::FLOAT : int4 ? ort::UINT8 : ort::INT8;
    }
    bool is_optional(size_t input) const { return input && input == last_tokens(); }
    size_t outputs() const { return kind == Kind::head ? 2 : 1; }
    int type_of_output(size_t output) const { return output == 1 ? ort::INT64 : ort::FLOAT; }
};

// One node's constants. Biases, and the scales of int8, are copied, so that the values behind the last column are 0.
struct Node {
    const Form *form;
    Weights weights;
    long outputs;  // columns of y
    void *copies;
    long outliers;
    float *outlier_weights;  // [outliers][panels * 64]
};

constexpr long MOST_OUTLIERS = 256;

// ---- creating a node

// A node's number of inputs, number of columns of y, and for int4 its block size.
struct Sizes {
    int64_t inputs = 0, columns = 0, block = 0;

    // int8 has one scale for each column, so the scales give the number of columns.
    Status *read(const ort::KernelInfo *info, bool int4, const Shape &scale, long halves) {
        HFX_TRY(api->attribute(info, "in_features", &inputs));
        columns = scale.elements() / halves;
        if (!int4) return nullptr;
        HFX_TRY(api->attribute(info, "out_features", &columns));
        HFX_TRY(api->attribute(info, "block", &block));
        bool known = block == 16 || block == 32 || block == 64 || block == MOST_BLOCK;
        return known ? nullptr : invalid("hfx: the attribute block must be 16, 32, 64 or 128");
    }

    Status *check(const Shape &weights, const Shape &scale, long halves) const {
        const long groups = block ? 2 * GROUP : GROUP, step = block > DEPTH_STEP ? block : DEPTH_STEP;
        if (weights.rank != 4 || weights.sizes[0] < 1 || weights.sizes[2] != COLUMNS || weights.sizes[3] != GROUP || weights.sizes[1] % (step / groups))
            return invalid("hfx: weights must be [panels, depth / 4, 64, 4], depth a multiple of 64; of int4 depth / 8, and of the block");
        const long depth = weights.sizes[1] * groups, panels = weights.sizes[0];
        if (inputs < 1 || inputs > depth || inputs <= depth - step || inputs > LONGEST)
            return invalid("hfx: the attribute in_features doesn't fit the weights");
        const long most = panels / halves * COLUMNS;
        if (columns < 1 || columns > most || columns <= most - COLUMNS || panels % halves)
            return invalid("hfx: the scales, or the attribute out_features, don't fit the weights");
        const bool by_block = scale.rank == 3 && scale.sizes[0] == panels && scale.sizes[2] == COLUMNS;
        if (block ? !by_block || scale.sizes[1] != depth / block : scale.elements() != columns * halves)
            return invalid("hfx: the scales don't fit the weights");
        return nullptr;
    }
};

// Sets `start` to -128 times each column's sum of bytes, over all inputs or over each block of int4; sets w.groups.
void fill_start(Weights &w, int32_t *start) {
    int beyond = 0, four_beyond = 0;  // a weight is beyond 64; the equally signed ones of two pairs add up to more than 128
    const long depth = w.depth / w.blocks();
    int8_t unpacked[MOST_BLOCK * COLUMNS];
    for (long i = 0; i < w.panels * w.blocks(); i++) {
        int32_t sums[COLUMNS] = {};
        const int8_t *values = w.values + i * (w.bytes() / w.blocks());
        if (w.block) {
            chosen->unpack(values, w.block, unpacked);
            values = unpacked;
        }
        for (long k = 0; k < depth; k += 2 * GROUP, values += 2 * COLUMNS * GROUP)
            for (int c = 0; c < COLUMNS; c++)
                for (int j = c * GROUP; j < (c + 1) * GROUP; j += 2) {
                    int32_t above = 0, below = 0;
                    for (int n = 0; n < 4; n++) {
                        const int32_t value = values[j + n / 2 * COLUMNS * GROUP + n % 2];
                        above += value > 0 ? value : 0, below += value < 0 ? value : 0, beyond |= (value > 64) | (value < -64);
                    }
                    sums[c] += above + below, four_beyond |= (above > 128) | (below < -128);
                }
        for (int c = 0; c < COLUMNS; c++) start[i * COLUMNS + c] = -128 * sums[c];
    }
    w.groups = w.block ? 0 : !four_beyond ? 2 : !beyond;
}

// Copies one value for each column. Each half of a gated product has panels of its own.
void copy_columns(const float *from, float *to, long columns, long halves, long panels) {
    for (long half = 0; half < halves; half++)
        memcpy(to + half * panels / halves * COLUMNS, from + half * columns, size_t(columns) * sizeof(float));
}

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    const Form &form = as<Form>(op);
    Tensor values, scale, bias = {}, columns_of_outliers = {};
    Sizes sizes;
    HFX_TRY(read_constant(info, 1, values));
    HFX_TRY(read_constant(info, 2, scale));
    if (form.kind != Kind::rows) HFX_TRY(read_constant(info, 3, bias));
    const long halves = form.gated ? 2 : 1;
    HFX_TRY(sizes.read(info, form.int4, scale.shape, halves));
    HFX_TRY(sizes.check(values.shape, scale.shape, halves));
    long panels = values.shape.sizes[0], columns = sizes.columns, outliers = 0;
    if (form.kind != Kind::rows && bias.shape.elements() != columns * halves)
        return invalid("hfx: the biases don't fit the scales");
    if (form.outliers) {
        HFX_TRY(read_constant(info, 6, columns_of_outliers));
        outliers = columns_of_outliers.shape.last();
        if (columns_of_outliers.shape.rank != 2 || columns_of_outliers.shape.sizes[0] != columns || outliers > MOST_OUTLIERS)
            return invalid("hfx: the columns of outliers don't fit the scales");
    }
    const long depth = values.shape.sizes[1] * (form.int4 ? 2 * GROUP : GROUP);
    Weights weights = {sizes.inputs, depth, panels, sizes.block, values.as<int8_t>(), nullptr, nullptr, nullptr};
    size_t padded = size_t(panels) * COLUMNS;
    Node *node = static_cast<Node *>(malloc(sizeof(Node)));
    void *copies = calloc((2 + size_t(weights.blocks()) + size_t(outliers)) * padded, sizeof(float));
    if (!node || !copies) {
        free(node), free(copies);
        return out_of_memory();
    }
    float *scales = static_cast<float *>(copies), *biases = scales + padded;
    float *outlier_weights = biases + padded;
    int32_t *start = reinterpret_cast<int32_t *>(outlier_weights + size_t(outliers) * padded);
    for (long i = 0; i < outliers; i++)
        for (long column = 0; column < columns; column++)
            outlier_weights[size_t(i) * padded + size_t(column)] = columns_of_outliers.as<float>()[column * outliers + i];
    weights.scale = form.int4 ? scale.as<float>() : scales, weights.bias = biases, weights.start = start;
    if (!form.int4) copy_columns(scale.as<float>(), scales, columns, halves, panels);
    if (form.kind != Kind::rows) copy_columns(bias.as<float>(), biases, columns, halves, panels);
    if (form.kind != Kind::rows) fill_start(weights, start);
    if (copies_weights && form.kind != Kind::rows) weights.values = in_huge_pages(weights.values, size_t(panels * weights.bytes()));
    *node = {&form, weights, columns, copies, outliers, outlier_weights};
    *out = node;
    return nullptr;
}

void destroy(void *data) {
    Node *node = static_cast<Node *>(data);
    leave_huge_pages(node->weights.values);
    free(node->copies);
    free(node);
}

// ---- running a node

// Rows of a task. They are multiplied by one panel after the other, so they must fit into the second-level cache.
constexpr long ROWS_A_TASK = 256;

// A node's input x as bytes, and the product to compute, without its outputs.
struct Prepared {
    Tensor x;
    Scratch scratch;
    Product product;
    SharedRows shared = {};
    const int32_t *padding = nullptr;  // rows of y to set to 0
    long padding_count = 0;

    // `more` is the number of bytes of memory to provide at `extra`; `last` is the index of the input with the last
    // tokens, or 0 if there is none.
    Status *prepare(ort::KernelContext *context, const Node &node, size_t more = 0, size_t last = 0) {
        const Weights &w = node.weights;
        HFX_TRY(read_input(context, 0, x));
        if (!x.shape.rank || x.shape.last() != w.inputs) return invalid("hfx: the rows don't fit the weights");
        Tokens tokens = {{}, x.shape.rows(), x.shape.rows()};
        if (last) HFX_TRY(tokens.read(context, last, tokens.all));
        size_t count = size_t(tokens.count), bytes = count * size_t(w.depth), scales = count * size_t(w.blocks()) * sizeof(float);
        size_t places = tokens.padded() ? size_t(tokens.all) * sizeof(int32_t) : 0;
        HFX_TRY(scratch.take(context, bytes + scales + places + 64 + more));
        uint8_t *rows = static_cast<uint8_t *>(scratch.memory);
        float *row_scale = reinterpret_cast<float *>(rows + bytes);  // depth is a multiple of 64
        int32_t *place = tokens.padded() ? reinterpret_cast<int32_t *>(rows + bytes + scales) : nullptr;
        if (place) {
            tokens.write(place);
            padding = place + tokens.count, padding_count = tokens.all - tokens.count;
        }
        extra = rows + bytes + (scales + places + 63) / 64 * 64;
        shared.rows = {x.as<float>(), place, &w, rows, row_scale, tokens.count};
        product = {&w, rows, row_scale, place, long(count), node.form->activation, node.form->gated, nullptr, nullptr, node.outputs, 0, nullptr, nullptr};
        if (tokens.count <= ROWS_A_TASK) return nullptr;
        shared.done = tokens.count;
        return in_threads(context, quantize_row, size_t(tokens.count), &shared.rows);
    }
    uint8_t *extra = nullptr;
};

long panels_of(const Product &p) { return p.weights->panels / (p.gated ? 2 : 1); }

void run_panel(void *data, size_t task) {
    Prepared &prepared = *static_cast<Prepared *>(data);
    const Product &p = prepared.product;
    prepared.shared.quantize();
    const long panel = long(task) % panels_of(p), row = long(task) / panels_of(p) * ROWS_A_TASK;
    chosen->panel(p.part(row, ROWS_A_TASK), panel);
    if (row) return;
    const long first = panel * COLUMNS, columns = smaller(p.outputs - first, COLUMNS);
    for (long i = 0; i < prepared.padding_count; i++)
        memset(p.y + prepared.padding[i] * p.outputs + first, 0, size_t(columns) * sizeof(float));
}

Status *run_linear(const Node &node, ort::KernelContext *context) {
    Prepared prepared;
    HFX_TRY(prepared.prepare(context, node, 0, node.form->last_tokens()));
    Product &product = prepared.product;
    if (node.form->residual) {
        Tensor residual;
        HFX_TRY(read_input(context, 4, residual));
        if (residual.shape.elements() != prepared.x.shape.rows() * node.outputs) return invalid("hfx: the residual doesn't fit the product");
        product.residual = residual.as<float>();
    }
    HFX_TRY(make_output(context, 0, prepared.x.shape, node.outputs, reinterpret_cast<void **>(&product.y)));
    const long tasks = (product.count + ROWS_A_TASK - 1) / ROWS_A_TASK * panels_of(product);
    return tasks ? in_threads(context, run_panel, size_t(tasks), &prepared) : nullptr;
}

constexpr long PANELS_A_TASK = 8;

struct Heads {
    Product product;
    SharedRows *shared;
    float *values;  // [tasks][rows]
    int32_t *columns;
};

void run_best(void *data, size_t task) {
    const Heads &heads = *static_cast<Heads *>(data);
    const Product &p = heads.product;
    heads.shared->quantize();
    const long first = long(task) * PANELS_A_TASK, last = smaller(first + PANELS_A_TASK, p.weights->panels);
    chosen->best(p, first, last, heads.values + long(task) * p.count, heads.columns + long(task) * p.count);
}

// Outputs: logits [.., outputs], which are empty if input 4 is false, and the best column of each row [.., 1].
Status *run_head(const Node &node, ort::KernelContext *context) {
    Tensor wanted, x;
    HFX_TRY(read_input(context, 4, wanted));
    HFX_TRY(read_input(context, 0, x));
    if (wanted.shape.elements() != 1) return invalid("hfx: wants_logits must be one value");
    if (x.shape.rank < 2) return invalid("hfx: the rows of a head must have 2 dimensions or more");
    size_t tasks = size_t(node.weights.panels + PANELS_A_TASK - 1) / PANELS_A_TASK, each = tasks * size_t(x.shape.rows());
    Prepared prepared;
    HFX_TRY(prepared.prepare(context, node, each * (sizeof(float) + sizeof(int32_t))));
    float *values = reinterpret_cast<float *>(prepared.extra);
    Heads heads = {prepared.product, &prepared.shared, values, reinterpret_cast<int32_t *>(values + each)};
    long count = heads.product.count;
    if (node.form->outliers) {
        Tensor outliers;
        HFX_TRY(read_input(context, 5, outliers));
        if (outliers.shape.elements() != count * node.outliers) return invalid("hfx: the outliers don't fit the rows");
        heads.product.outliers = node.outliers;
        heads.product.outlier_inputs = outliers.as<float>();
        heads.product.outlier_weights = node.outlier_weights;
    }
    if (*wanted.as<bool>()) {
        HFX_TRY(make_output(context, 0, x.shape, node.outputs, reinterpret_cast<void **>(&heads.product.y)));
    } else {
        Shape none = x.shape;
        void *nothing;
        none.sizes[0] = 0;
        HFX_TRY(make_output(context, 0, none, node.outputs, &nothing));
    }
    int64_t *ids = nullptr;
    HFX_TRY(make_output(context, 1, x.shape, 1, reinterpret_cast<void **>(&ids)));
    if (!count) return nullptr;
    HFX_TRY(in_threads(context, run_best, tasks, &heads));
    for (long row = 0; row < count; row++) {
        ids[row] = 0;
        float best = -__builtin_inff();
        for (size_t task = 0; task < tasks; task++) {  // in the order of columns, so that the first among equals wins
            long at = long(task) * count + row;
            if (heads.values[at] > best) best = heads.values[at], ids[row] = heads.columns[at];
        }
    }
    return nullptr;
}

struct Lookup {
    const Node &node;
    const int64_t *ids;
    float *y;  // [ids][inputs]
};

// Writes a row of a table, whose rows are the columns of the weights.
void look_up(void *data, size_t at) {
    const Lookup &l = *static_cast<Lookup *>(data);
    const Weights &w = l.node.weights;
    const long id = l.ids[at] < 0 ? l.ids[at] + l.node.outputs : l.ids[at];
    const int8_t *values = w.panel(id / COLUMNS) + id % COLUMNS * GROUP;
    const float *scale = w.scale + id / COLUMNS * w.blocks() * COLUMNS + id % COLUMNS;
    float *y = l.y + long(at) * w.inputs;
    for (long k = 0; k < w.inputs; k++) {
        const int8_t value = values[k / GROUP / (w.block ? 2 : 1) * COLUMNS * GROUP + k % GROUP];
        if (!w.block) y[k] = float(value) * *scale;
        else y[k] = float(k / GROUP % 2 ? value >> 4 : int8_t(uint8_t(value) << 4) >> 4) * scale[k / w.block * COLUMNS];
    }
}

// Output: rows for ids of any shape, [.., inputs].
Status *run_rows(const Node &node, ort::KernelContext *context) {
    Tensor ids;
    HFX_TRY(read_input(context, 0, ids));
    if (ids.shape.rank >= MOST_RANK) return invalid("hfx: ids have more than 7 dimensions");
    Lookup lookup = {node, ids.as<int64_t>(), nullptr};
    for (long i = 0; i < ids.shape.elements(); i++)
        if (lookup.ids[i] < -node.outputs || lookup.ids[i] >= node.outputs) return invalid("hfx: an id is beyond the table");
    Shape shape = ids.shape;
    shape.rank++;
    HFX_TRY(make_output(context, 0, shape, node.weights.inputs, reinterpret_cast<void **>(&lookup.y)));
    return run_tasks(context, look_up, ids.shape.elements(), ids.shape.elements() * node.weights.inputs, &lookup);
}

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    switch (node.form->kind) {
    case Kind::linear: return run_linear(node, context);
    case Kind::head: return run_head(node, context);
    case Kind::rows: return run_rows(node, context);
    }
    return nullptr;
}

Form forms[40];
size_t form_count = 0;

void add_form(const char *stem, const char *suffix, Kind kind, Activation activation, bool gated = false, bool residual = false, bool outliers = false) {
    forms[form_count++] = {titled(stem, suffix), kind, activation, gated, residual, outliers, false};
}

void make_forms() {
    if (form_count) return;
    for (const auto &each : ACTIVATIONS) {
        add_form("Int8Linear", each.suffix, Kind::linear, each.activation);
        if (each.activation != Activation::none) add_form("Int8LinearGated", each.suffix, Kind::linear, each.activation, true);
    }
    add_form("Int8LinearAdd", "", Kind::linear, Activation::none, false, true);
    add_form("Int8Head", "", Kind::head, Activation::none);
    add_form("Int8Rows", "", Kind::rows, Activation::none);
    const size_t int8_count = form_count;
    for (size_t i = 0; i < int8_count; i++) {
        Form &made = forms[form_count++] = forms[i];
        made.title[3] = '4';
        made.int4 = true;
    }
    add_form("Int8HeadOutliers", "", Kind::head, Activation::none, false, false, true);
}

// Adds the operators to `options`. The domain and the operators live as long as the process.
Status *add_to(ort::SessionOptions *options, const ort::ApiBase *base) {
    static ort::Domain *domain;
    const Api *given = base->api(ort::VERSION);
    if (!api) api = given;
    if (!api) return base->api(1)->fail(ort::FAIL, "hfx: ONNX Runtime 1.17 or later is needed");
    if (api != given) return base->api(1)->fail(ort::FAIL, "hfx: another ONNX Runtime of this process has these operators");
    if (!chosen) chosen = kernels();
    if (!chosen) return api->fail(ort::FAIL, refusal());
    if (!cpu_memory) HFX_TRY(api->cpu_memory(&cpu_memory));
    if (!domain) {
        make_forms();
        ort::Domain *whole;
        HFX_TRY(api->new_domain("hfx", &whole));
        HFX_TRY(add_operators(whole, forms, form_count, create, compute, destroy));
        HFX_TRY(add_attention_operators(whole));
        HFX_TRY(add_self_attention(whole));
        HFX_TRY(add_float_operators(whole));
        HFX_TRY(add_adapter_operators(whole));
        domain = whole;  // only now: after a failure, the next session must not get a part of the operators
    }
    return api->add_domain(options, domain);
}

}  // namespace
}  // namespace hfx

// ONNX Runtime calls this function to register the library. A server may open sessions in several threads.
extern "C" __attribute__((visibility("default"))) ort::Status *RegisterCustomOps(ort::SessionOptions *options, const ort::ApiBase *base) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    hfx::Held held(lock);
    return hfx::add_to(options, base);
}

// The functions for masks (floats.h). The process must have registered the operators.
extern "C" __attribute__((visibility("default"))) int64_t hfx_best_allowed(const float *scores, const uint8_t *allowed, int64_t count) {
    return hfx::chosen->floats->best_allowed(scores, allowed, long(count));
}
extern "C" __attribute__((visibility("default"))) void hfx_forbid(float *scores, const uint8_t *allowed, int64_t count) {
    hfx::chosen->floats->forbid(scores, allowed, long(count));
}

// Sets whether the weights of sessions that are created from now on, in any thread, are copied into huge pages.
extern "C" __attribute__((visibility("default"))) void hfx_huge_pages(int wanted) { hfx::copies_weights = wanted; }
