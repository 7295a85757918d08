// The operators for the attention of all tokens of a text to each other. They read queries, keys and values from one
// tensor: SelfAttention with a mask, SourceAttention without a mask, either with or without a bias. SelfAttentionRotary
// rotates queries and keys. SelfAttentionDisentangled also multiplies them by keys and queries of relative positions.
// SelfAttentionHeads reads three tensors, by head. SelfAttentionFirst reads the queries of the first tokens alone, and
// computes only their results. If the last token of each text is given, results behind it are 0.
#include "floats.h"
#include "context.h"

namespace hfx {
namespace {

// The inputs that an operator reads besides queries, keys and values. HEADS: it reads queries, keys and values by head.
// FIRST: it reads the queries of the first tokens, and keys and values.
enum Part { MASK = 1, BIAS = 2, ROTATION = 4, HEADS = 8, POSITIONS = 16, FIRST = 32 };

struct Form : Described {
    int parts;

    bool has(Part part) const { return parts & part; }

    size_t place_of_mask() const { return has(HEADS) ? 3 : has(FIRST) ? 2 : 1; }
    size_t place_of_last() const { return has(MASK) ? place_of_mask() + 1 + has(BIAS) + 2 * has(ROTATION) + 3 * has(POSITIONS) : 1; }

    size_t inputs() const { return has(MASK) ? place_of_last() + 1 : 4 + has(BIAS); }
    int type(size_t input) const {
        if (input == place_of_last() || (has(POSITIONS) && input == 2)) return ort::INT32;
        if (has(MASK) || input == 0 || input == 4) return ort::FLOAT;
        return input == 3 ? ort::INT64 : ort::INT32;
    }
    bool is_optional(size_t input) const { return has(MASK) && input == place_of_last(); }
};

struct Node {
    const Form *form;
    long heads;
    float scale;
};

struct Run {
    SelfAttention whole;  // its pointers are for the first row's first head; it has no buffer
    long heads, rows;
    const int32_t *last;                                      // the last token of each row; or null
    long query_of_row, of_row, of_head, added_of_row[2], added_of_head[2];  // floats to the next row or head
    int failed;
};

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    int64_t heads = 0;
    float scale = 0;
    HFX_TRY(api->attribute(info, "heads", &heads));
    HFX_TRY(api->attribute(info, "scale", &scale));
    if (heads < 1 || heads > 4096) return invalid("hfx: heads must be 1 to 4096");
    return store(Node{&as<Form>(op), long(heads), scale}, out);
}

void attend_head(void *data, size_t task) {
    Run &run = *static_cast<Run *>(data);
    const long row = long(task) / run.heads, head = long(task) % run.heads, from = row * run.of_row + head * run.of_head;
    SelfAttention a = run.whole;
    a.query += row * run.query_of_row + head * run.of_head, a.key += from, a.value += from;
    a.out += row * a.queries * a.out_stride + head * a.dim;
    if (a.bucket) a.position_keys += head * a.dim * a.buckets, a.position_queries += head * a.dim * a.buckets;
    for (int i = 0; i < 2; i++)
        if (a.added[i]) a.added[i] += row * run.added_of_row[i] + head * run.added_of_head[i];
    if (run.last) {
        const long length = run.last[row] + 1;
        for (long token = length; token < a.queries; token++) memset(a.out + token * a.out_stride, 0, size_t(a.dim) * sizeof(float));
        a.width = length, a.queries = smaller(a.queries, length);
    }
    void *buffer = nullptr;
    if (posix_memalign(&buffer, 64, size_t(self_attention_buffer(a.width, a.dim, a.buckets)) * sizeof(float))) {
        __atomic_store_n(&run.failed, 1, __ATOMIC_RELAXED);
        return;
    }
    a.buffer = static_cast<float *>(buffer);
    chosen->floats->self_attend(a);
    free(buffer);
}

// Reads a mask or bias [1 or rows, 1 or heads, 1 or width, width] into added[place]. A size of 1 is one value for all.
Status *read_added(ort::KernelContext *context, size_t index, int place, Run &run) {
    Tensor added;
    HFX_TRY(read_input(context, index, added));
    const int64_t *sizes = added.shape.sizes;
    const long width = run.whole.width;
    if (added.shape.rank != 4 || (sizes[0] != 1 && sizes[0] != run.rows) || (sizes[1] != 1 && sizes[1] != run.heads) ||
        (sizes[2] != 1 && sizes[2] != width) || sizes[3] != width)
        return invalid("hfx: a mask or bias doesn't fit the rows");
    run.whole.added[place] = added.as<float>();
    run.whole.added_stride[place] = sizes[2] == 1 ? 0 : width;
    run.added_of_head[place] = sizes[1] == 1 ? 0 : sizes[2] * width;
    run.added_of_row[place] = sizes[0] == 1 ? 0 : sizes[1] * sizes[2] * width;
    return nullptr;
}

// Reads qkv [rows, width, 3 * heads * dim]; or, without a mask, [rows * width, 3 * heads * dim], where `last` gives the
// number of rows.
Status *read_joined(ort::KernelContext *context, const Form &form, const Tensor &last, Run &run) {
    Tensor x;
    HFX_TRY(read_input(context, 0, x));
    if (x.shape.rank != (form.has(MASK) ? 3 : 2)) return invalid("hfx: attention reads [rows, width, 3 * heads * dim], or tokens of that width");
    const long tokens = x.shape.rows(), inner = x.shape.last() / 3;
    run.rows = form.has(MASK) ? x.shape.sizes[0] : last.shape.elements();
    const long width = form.has(MASK) ? x.shape.sizes[1] : run.rows ? tokens / run.rows : 0, dim = inner / run.heads;
    if (!dim || x.shape.last() != 3 * run.heads * dim) return invalid("hfx: the size of a head must be a multiple of 16");
    if (run.rows * width != tokens) return invalid("hfx: there must be a length for each row");
    const float *first = x.as<float>();
    run.whole.query = first, run.whole.key = first + inner, run.whole.value = first + 2 * inner;
    run.whole.queries = run.whole.width = width, run.whole.dim = dim, run.whole.stride = 3 * inner, run.whole.out_stride = inner;
    run.query_of_row = run.of_row = width * 3 * inner, run.of_head = dim;
    return make_output(context, 0, x.shape, inner, reinterpret_cast<void **>(&run.whole.out));
}

// Reads queries, keys and values, [rows, heads, width, dim] each.
Status *read_heads(ort::KernelContext *context, Run &run) {
    Tensor of[3];
    for (size_t i = 0; i < 3; i++) HFX_TRY(read_input(context, i, of[i]));
    const Shape &shape = of[0].shape;
    for (const Tensor &each : of)
        if (each.shape.rank != 4 || memcmp(each.shape.sizes, shape.sizes, 4 * sizeof(int64_t)) || shape.sizes[1] != run.heads)
            return invalid("hfx: attention reads queries, keys and values [rows, heads, width, dim]");
    const long width = shape.sizes[2], dim = shape.sizes[3];
    run.rows = shape.sizes[0];
    run.whole.query = of[0].as<float>(), run.whole.key = of[1].as<float>(), run.whole.value = of[2].as<float>();
    run.whole.queries = run.whole.width = width, run.whole.dim = dim, run.whole.stride = dim, run.whole.out_stride = run.heads * dim;
    run.of_head = width * dim, run.query_of_row = run.of_row = run.heads * run.of_head;
    const Shape joined = {{run.rows, width, run.heads * dim}, 3};
    return make_output(context, 0, joined, run.heads * dim, reinterpret_cast<void **>(&run.whole.out));
}

// Reads the queries of the first tokens, [rows, heads * dim], and keys and values, [rows, width, 2 * heads * dim].
Status *read_first(ort::KernelContext *context, Run &run) {
    Tensor query, x;
    HFX_TRY(read_input(context, 0, query));
    HFX_TRY(read_input(context, 1, x));
    const int64_t *sizes = x.shape.sizes;
    if (query.shape.rank != 2 || x.shape.rank != 3 || sizes[0] != query.shape.sizes[0] || !sizes[1] || sizes[2] != 2 * query.shape.last() || query.shape.last() % run.heads)
        return invalid("hfx: attention of first tokens reads queries [rows, heads * dim], and [rows, width, 2 * heads * dim]");
    const long width = sizes[1], inner = query.shape.last(), dim = inner / run.heads;
    run.rows = sizes[0];
    run.whole.query = query.as<float>(), run.whole.key = x.as<float>(), run.whole.value = x.as<float>() + inner;
    run.whole.queries = 1, run.whole.width = width, run.whole.dim = dim, run.whole.stride = 2 * inner, run.whole.out_stride = inner;
    run.query_of_row = inner, run.of_row = width * 2 * inner, run.of_head = dim;
    return make_output(context, 0, query.shape, inner, reinterpret_cast<void **>(&run.whole.out));
}

// Reads the cosines and sines of all tokens, [1, 1, width, dim] each.
Status *read_rotation(ort::KernelContext *context, Run &run) {
    Tensor of[2];
    for (size_t i = 0; i < 2; i++) {
        HFX_TRY(read_input(context, 2 + i, of[i]));
        const Shape &shape = of[i].shape;
        if (shape.rank != 4 || shape.elements() != run.whole.width * run.whole.dim || shape.last() != run.whole.dim)
            return invalid("hfx: cosines and sines must be [1, 1, width, dim]");
    }
    run.whole.cos = of[0].as<float>(), run.whole.sin = of[1].as<float>();
    return nullptr;
}

// Reads the buckets, [2 * width], of the keys that are width - 1 tokens before a query to `width` tokens behind it
// (only the operator's definition as an ONNX function uses the last one), and the keys and queries of the positions,
// [heads, dim, buckets] each.
Status *read_positions(ort::KernelContext *context, Run &run) {
    Tensor bucket, of[2];
    HFX_TRY(read_input(context, 2, bucket));
    for (size_t i = 0; i < 2; i++) {
        HFX_TRY(read_input(context, 3 + i, of[i]));
        const Shape &shape = of[i].shape;
        if (shape.rank != 3 || shape.sizes[0] != run.heads || shape.sizes[1] != run.whole.dim || shape.last() != of[0].shape.last() ||
            shape.last() < 1 || shape.last() % SELF_ATTENTION_STEP)
            return invalid("hfx: keys and queries of positions must be [heads, dim, buckets], buckets a multiple of 16");
    }
    const long width = run.whole.width, buckets = of[0].shape.last();
    if (bucket.shape.rank != 1 || bucket.shape.elements() != 2 * width) return invalid("hfx: there must be two buckets for each token");
    HFX_TRY(check_range(bucket, 0, buckets, "hfx: there is no such bucket"));
    run.whole.buckets = buckets, run.whole.bucket = bucket.as<int32_t>() + width - 1;
    run.whole.position_keys = of[0].as<float>(), run.whole.position_queries = of[1].as<float>();
    return nullptr;
}

// Inputs with a mask: queries, keys and values, in one, two or three tensors; the mask; then a bias, or cosines and
// sines, or buckets with their keys and queries; and optionally the last token of each row.
// Inputs without a mask: queries, keys and values; the last token of each row; two inputs that only the operator's
// definition as an ONNX function uses; and a bias, if the operator has one.
Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    const Form &form = *node.form;
    Tensor last = {};
    HFX_TRY(read_optional_input(context, form.place_of_last(), last));
    Run run = {};
    run.heads = node.heads, run.whole.scale = node.scale;
    HFX_TRY(form.has(HEADS) ? read_heads(context, run) : form.has(FIRST) ? read_first(context, run) : read_joined(context, form, last, run));
    const long rows = run.rows, width = run.whole.width;
    if (!run.whole.dim || run.whole.dim % SELF_ATTENTION_STEP) return invalid("hfx: the size of a head must be a multiple of 16");
    if (last.data && last.shape.elements() != rows) return invalid("hfx: there must be a length for each row");
    run.last = last.as<int32_t>();
    if (last.data) HFX_TRY(check_range(last, 0, width, "hfx: a length doesn't fit the rows"));
    if (form.has(MASK)) HFX_TRY(read_added(context, form.place_of_mask(), 0, run));
    if (form.has(BIAS)) HFX_TRY(read_added(context, form.has(MASK) ? 2 : 4, form.has(MASK), run));
    if (form.has(ROTATION)) HFX_TRY(read_rotation(context, run));
    if (!rows || !width) return nullptr;
    if (form.has(POSITIONS)) HFX_TRY(read_positions(context, run));
    HFX_TRY(in_threads(context, attend_head, size_t(rows * node.heads), &run));
    return run.failed ? out_of_memory() : nullptr;
}

Form forms[] = {
    {{{}, "SelfAttention"}, MASK},
    {{{}, "SelfAttentionBias"}, MASK | BIAS},
    {{{}, "SelfAttentionRotary"}, MASK | ROTATION},
    {{{}, "SelfAttentionDisentangled"}, MASK | POSITIONS},
    {{{}, "SelfAttentionHeads"}, MASK | HEADS},
    {{{}, "SelfAttentionFirst"}, MASK | FIRST},
    {{{}, "SourceAttention"}, 0},
    {{{}, "SourceAttentionBias"}, BIAS},
};

}  // namespace

Status *add_self_attention(ort::Domain *domain) { return add_operators(domain, forms, sizeof forms / sizeof *forms, create, compute, free); }

}  // namespace hfx
