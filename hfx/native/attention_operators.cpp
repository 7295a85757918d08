// CachedAttention and CrossAttention: a decoder's attention to keys and values that are stored in a cache.
//
// A cache is both an input and an output, bound to the same memory, so that only the new positions are written. A cache
// is [rows, kv_heads, capacity, dim], with as many heads as the queries have, or with one head for each group of
// neighbouring query heads. With a window, a token attends to that many positions, of which its own is the last.
// Operators with a float16 cache may have one input more: the tokens of each row whose results are wanted.
#include "floats.h"
#include "context.h"

namespace hfx {
namespace {

struct Form : Described {
    bool cross;
    Stored stored;
    bool biased, rotary;

    // The count includes further inputs, which are not read here: only the operators' definitions as ONNX functions use
    // them.
    size_t inputs() const {
        if (cross) return stored == Stored::int8 ? 9 : 7;
        return (rotary ? 8 : biased ? 7 : 6) + (stored == Stored::float16);
    }
    bool is_optional(size_t input) const { return !cross && stored == Stored::float16 && input + 1 == inputs(); }
    int type_of_cache() const { return stored == Stored::float32 ? ort::FLOAT : stored == Stored::float16 ? ort::FLOAT16 : ort::INT8; }
    int type(size_t input) const {
        if (input == 1 || input == 2) return type_of_cache();
        if (input == 3 || input == (cross ? inputs() - 1 : 4)) return ort::INT32;
        return (input == 5 && !cross) || is_optional(input) ? ort::INT64 : ort::FLOAT;
    }
    size_t outputs() const { return 3; }
    int type_of_output(size_t output) const { return output ? type_of_cache() : ort::FLOAT; }
};

struct Node {
    const Form *form;
    long heads, kv_heads, beams, window;  // window: positions that a token attends to; 0: all up to its own
    float scale;
};

// Reads an attribute that a node may lack; `value` does not change if the node lacks it.
void read_optional(const ort::KernelInfo *info, const char *name, int64_t *value) {
    int64_t found = 0;
    if (Status *missing = api->attribute(info, name, &found)) return api->release(missing);
    *value = found;
}

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    const Form &form = *static_cast<const Form *>(op);
    int64_t heads = 0, beams = 1, window = 0;
    float scale = 0;
    HFX_TRY(api->attribute(info, "heads", &heads));
    HFX_TRY(api->attribute(info, "scale", &scale));
    int64_t kv_heads = heads;
    if (form.cross) HFX_TRY(api->attribute(info, "beams", &beams));
    if (!form.cross) read_optional(info, "kv_heads", &kv_heads), read_optional(info, "window", &window);
    if (heads < 1 || heads > 4096 || beams < 1 || beams > 4096) return invalid("hfx: heads and beams must be 1 to 4096");
    if (kv_heads < 1 || heads % kv_heads) return invalid("hfx: kv_heads must divide heads");
    if (window < 0) return invalid("hfx: a window must not be negative");
    return store(Node{&form, long(heads), long(kv_heads), long(beams), long(window), scale}, out);
}

// Reads a cache, and makes the output that should be bound to the same memory. If the caller bound other memory to the
// output, the cache is copied there.
Status *read_cache(ort::KernelContext *context, size_t input, size_t output, Stored stored, Tensor &cache, void **present) {
    HFX_TRY(read_input(context, input, cache));
    if (cache.shape.rank != 4) return invalid("hfx: a cache must be [rows, heads, capacity, dim]");
    ort::Value *value = nullptr;
    HFX_TRY(api->output(context, output, cache.shape.sizes, 4, &value));
    HFX_TRY(api->data(value, present));
    if (*present != cache.data) memcpy(*present, cache.data, size_t(cache.shape.elements()) * bytes_of(stored));
    return nullptr;
}

// Fewer queries than this to a head are computed a few at a time: transposing the keys would take longer.
constexpr long MANY_QUERIES = 16;

// One run of an operator.
struct Run {
    const Node *node;
    long rows, kv_heads, group, tokens, dim, capacity;  // tokens: of a row, or of all beams of a request
    const float *queries;                               // [rows * tokens][query_stride]
    long query_stride;
    uint8_t *keys, *values;
    const int32_t *last;
    long start;  // the position of a prompt's first token; -1: a step, in which each row has a position of its own
    const float *bias;
    long bias_rows, bias_queries, bias_positions;
    const float *cos, *sin;  // [positions][dim / 2], or null
    const int64_t *picked;   // [rows][wanted], or null: all tokens
    long wanted;             // tokens of a row with results
    const float *key_scale, *value_scale;
    float *out;  // [rows * wanted][heads * dim]

    long heads() const { return kv_heads * group; }
    Stored stored() const { return node->form->stored; }
    uint8_t *head(uint8_t *cache, long row, long h) const { return cache + size_t((row * kv_heads + h) * capacity * dim) * bytes_of(stored()); }

    // Returns a head of a query or key, rotated by the angles of `position` if there are any: channels i and
    // i + dim / 2 are rotated together.
    const float *turned(const float *from, long position, float *buffer) const {
        if (!cos) return from;
        const long half = dim / 2;
        const float *c = cos + position * half, *s = sin + position * half;
        for (long i = 0; i < half; i++) {
            buffer[i] = from[i] * c[i] - from[half + i] * s[i];
            buffer[half + i] = from[half + i] * c[i] + from[i] * s[i];
        }
        return buffer;
    }

    void keep(const float *from, uint8_t *cache, long position) const {
        uint8_t *to = cache + size_t(position * dim) * bytes_of(stored());
        if (stored() == Stored::float16) chosen->floats->to_float16(from, dim, to);
        else memcpy(to, from, size_t(dim) * sizeof(float));
    }

    void append(long row, long h, long first, long count) const {
        float buffer[LARGEST_HEAD];
        for (long token = 0; token < count; token++) {
            const float *qkv = queries + (row * tokens + token) * query_stride;
            keep(turned(qkv + (heads() + h) * dim, first + token, buffer), head(keys, row, h), first + token);
            keep(qkv + (heads() + kv_heads + h) * dim, head(values, row, h), first + token);
        }
    }

    // The queries to a head: those of a row's tokens up to its length, or of the picked ones, each in the heads of a
    // group.
    struct Queries {
        long row, head, length, first, real, count;
    };
    Queries queries_of(long index) const {
        Queries q = {index / kv_heads, index % kv_heads, 0, 0, 0, wanted};
        q.length = last[q.row] + 1, q.first = node->form->cross ? 0 : start < 0 ? last[q.row] : start;
        q.real = node->form->cross || q.length - q.first > tokens ? tokens : q.length - q.first;
        if (!picked) q.count = q.real;
        return q;
    }

    // Appends a row's new keys and values of a head to the caches, and clears the results of padding.
    void begin(long index) const {
        const Queries q = queries_of(index);
        if (!node->form->cross) append(q.row, q.head, q.first, q.real);
        for (long token = q.count; token < wanted; token++)
            memset(out + ((q.row * wanted + token) * heads() + q.head * group) * dim, 0, size_t(group * dim) * sizeof(float));
    }

    // Computes up to `most` queries to a head, from `query` on.
    void attend(long index, long query, long most) const {
        const Queries own = queries_of(index);
        const long end = own.count * group;
        float buffers[MOST_QUERIES][LARGEST_HEAD];
        Attention a;
        a.count = int(end - query < most ? end - query : most);
        a.stored = stored(), a.dim = dim, a.scale = node->scale;
        a.keys = head(keys, own.row, own.head), a.values = head(values, own.row, own.head);
        const bool another = index + 1 < rows * kv_heads && query + most >= end;
        a.next_keys = another ? head(keys, (index + 1) / kv_heads, (index + 1) % kv_heads) : nullptr;
        a.next_values = another ? head(values, (index + 1) / kv_heads, (index + 1) % kv_heads) : nullptr;
        a.key_scale = key_scale ? key_scale + index * dim : nullptr;
        a.value_scale = key_scale ? value_scale + index * dim : nullptr;
        for (int q = 0; q < a.count; q++) {
            const long at = own.row * wanted + (query + q) / group, h = own.head * group + (query + q) % group;
            const long t = picked ? picked[at] : at - own.row * wanted;
            a.out[q] = out + (at * heads() + h) * dim;
            a.queries[q] = turned(queries + (own.row * tokens + t) * query_stride + h * dim, own.first + t, buffers[q]);
            a.lengths[q] = node->form->cross ? own.length : own.first + t + 1;
            a.firsts[q] = node->window && a.lengths[q] > node->window ? a.lengths[q] - node->window : 0;
            a.bias[q] = bias ? bias + (((bias_rows == 1 ? 0 : own.row) * heads() + h) * bias_queries + (bias_queries == 1 ? 0 : t)) * bias_positions : nullptr;
        }
        chosen->floats->attend(a);
    }

    // Tasks of a step: all queries to a head of a row's keys and values, a few at a time.
    void step(long index) const {
        begin(index);
        for (long query = 0, end = queries_of(index).count * group; query < end; query += FEW_QUERIES) attend(index, query, FEW_QUERIES);
    }

    // Tasks of prompts, after `begin` of each head: many queries to a head. The last ones, which are to the most
    // positions, come first.
    long blocks() const { return (wanted * group + MOST_QUERIES - 1) / MOST_QUERIES; }
    void block(long task) const {
        const long index = task % (rows * kv_heads), query = (blocks() - 1 - task / (rows * kv_heads)) * MOST_QUERIES;
        if (query < queries_of(index).count * group) attend(index, query, MOST_QUERIES);
    }

    template <void (Run::*Task)(long) const> Status *parallel(ort::KernelContext *context, long tasks) {
        return in_threads(context, [](void *data, size_t i) { (static_cast<const Run *>(data)->*Task)(long(i)); }, size_t(tasks), this);
    }
    Status *compute(ort::KernelContext *context) {
        if (wanted * group < MANY_QUERIES) return parallel<&Run::step>(context, rows * kv_heads);
        HFX_TRY(parallel<&Run::begin>(context, rows * kv_heads));
        return parallel<&Run::block>(context, rows * kv_heads * blocks());
    }
};

// Reads the inputs that both operators have: the caches, and the last position of each row.
Status *read_caches(const Node &node, ort::KernelContext *context, Run &run, Tensor &last) {
    Tensor keys, values;
    HFX_TRY(read_cache(context, 1, 1, node.form->stored, keys, reinterpret_cast<void **>(&run.keys)));
    HFX_TRY(read_cache(context, 2, 2, node.form->stored, values, reinterpret_cast<void **>(&run.values)));
    HFX_TRY(read_input(context, 3, last));
    const int64_t *sizes = keys.shape.sizes;
    if (memcmp(sizes, values.shape.sizes, 4 * sizeof *sizes)) return invalid("hfx: the caches of keys and values differ");
    if (sizes[1] != node.kv_heads) return invalid("hfx: the caches have another number of heads");
    if (sizes[3] < 1 || sizes[3] > LARGEST_HEAD) return invalid("hfx: a head must have 1 to 256 values");
    if (last.shape.elements() != sizes[0]) return invalid("hfx: there must be a length for each row of the caches");
    run.node = &node, run.rows = sizes[0], run.kv_heads = node.kv_heads, run.group = node.heads / node.kv_heads;
    run.capacity = sizes[2], run.dim = sizes[3], run.last = last.as<int32_t>();
    return nullptr;
}

constexpr const char *IS_TOO_LONG = "hfx: a row is longer than its cache";

// Inputs: qkv [rows * tokens, (heads + 2 * kv_heads) * dim], past_k, past_v, the last position of each row, the length
// of the longest row, and a shape that only the operator's definition as an ONNX function uses; then a bias
// [rows or 1, heads, tokens or 1, positions], or cosines and sines of each position.
Status *run_cached(const Node &node, ort::KernelContext *context) {
    Tensor qkv, last, total, bias = {}, cos = {}, sin = {}, picked = {};
    Run run = {};
    HFX_TRY(read_input(context, 0, qkv));
    HFX_TRY(read_caches(node, context, run, last));
    HFX_TRY(read_input(context, 4, total));
    const long rows = run.rows, dim = run.dim, width = node.heads * dim, all = width + 2 * node.kv_heads * dim, longest = *total.as<int32_t>();
    if (qkv.shape.last() != all || (rows ? qkv.shape.rows() % rows : qkv.shape.rows())) return invalid("hfx: queries don't fit the caches");
    const long tokens = rows ? qkv.shape.rows() / rows : 0, start = tokens == 1 ? -1 : longest - tokens;
    HFX_TRY(check_range(last, start < 0 ? 0 : start, run.capacity, IS_TOO_LONG));
    if (tokens > 1 && (start < 0 || longest > run.capacity)) return invalid("hfx: the total length doesn't fit the caches");
    run.tokens = run.wanted = tokens, run.start = start, run.queries = qkv.as<float>(), run.query_stride = all;
    if (node.form->biased) {
        HFX_TRY(read_input(context, 6, bias));
        const int64_t *sizes = bias.shape.sizes;
        if (bias.shape.rank != 4 || (sizes[0] != 1 && sizes[0] != rows) || sizes[1] != node.heads || (sizes[2] != 1 && sizes[2] != tokens))
            return invalid("hfx: the bias must be [rows, heads, tokens, positions]");
        HFX_TRY(check_range(last, 0, sizes[3], "hfx: the bias has too few positions"));
        run.bias = bias.as<float>(), run.bias_rows = sizes[0], run.bias_queries = sizes[2], run.bias_positions = sizes[3];
    }
    if (node.form->rotary) {
        HFX_TRY(read_input(context, 6, cos));
        HFX_TRY(read_input(context, 7, sin));
        if (dim % 2 || cos.shape.last() != dim / 2 || sin.shape.last() != dim / 2 || cos.shape.rows() != sin.shape.rows())
            return invalid("hfx: the tables of angles must be [positions, dim / 2]");
        HFX_TRY(check_range(last, 0, cos.shape.rows(), "hfx: the tables of angles have too few positions"));
        run.cos = cos.as<float>(), run.sin = sin.as<float>();
    }
    if (node.form->stored == Stored::float16) HFX_TRY(read_optional_input(context, node.form->inputs() - 1, picked));
    if (picked.data) {
        if (picked.shape.rank != 2 || picked.shape.sizes[0] != rows) return invalid("hfx: the picked tokens must be [rows, picked]");
        run.picked = picked.as<int64_t>(), run.wanted = picked.shape.sizes[1];
        for (long i = 0; i < rows * run.wanted; i++)
            if (run.picked[i] < 0 || run.picked[i] >= tokens) return invalid("hfx: a picked token is beyond its row");
    }
    Shape shape = {{rows * run.wanted, width}, 2};
    HFX_TRY(make_output(context, 0, shape, width, reinterpret_cast<void **>(&run.out)));
    return rows * tokens > 0 ? run.compute(context) : nullptr;
}

// Inputs: query [requests * beams * tokens, heads * dim], past_k, past_v, the last position of each request; for int8,
// also the scales of keys and of values, [requests, heads * dim] each.
Status *run_cross(const Node &node, ort::KernelContext *context) {
    Tensor query, last, key_scale = {}, value_scale = {};
    Run run = {};
    HFX_TRY(read_input(context, 0, query));
    HFX_TRY(read_caches(node, context, run, last));
    const long requests = run.rows, width = node.heads * run.dim;
    if (query.shape.last() != width || (requests ? query.shape.rows() % (requests * node.beams) : query.shape.rows())) return invalid("hfx: queries don't fit the caches");
    HFX_TRY(check_range(last, 0, run.capacity, IS_TOO_LONG));
    const long queries = requests ? query.shape.rows() / requests : 0;
    if (node.form->stored == Stored::int8) {
        HFX_TRY(read_input(context, 4, key_scale));
        HFX_TRY(read_input(context, 5, value_scale));
        if (key_scale.shape.elements() != requests * width || value_scale.shape.elements() != requests * width)
            return invalid("hfx: the scales don't fit the caches");
    }
    run.tokens = run.wanted = queries, run.queries = query.as<float>(), run.query_stride = width;
    run.key_scale = key_scale.as<float>(), run.value_scale = value_scale.as<float>();
    Shape shape = {{requests * queries, width}, 2};
    HFX_TRY(make_output(context, 0, shape, width, reinterpret_cast<void **>(&run.out)));
    return requests * queries > 0 ? run.compute(context) : nullptr;
}

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    return node.form->cross ? run_cross(node, context) : run_cached(node, context);
}

Form forms[] = {
    {{{}, "CachedAttention"}, false, Stored::float32, false, false},
    {{{}, "CachedAttentionBias"}, false, Stored::float32, true, false},
    {{{}, "CachedAttentionFloat16"}, false, Stored::float16, false, false},
    {{{}, "CachedAttentionRotaryFloat16"}, false, Stored::float16, false, true},
    {{{}, "CrossAttention"}, true, Stored::float32, false, false},
    {{{}, "CrossAttentionInt8"}, true, Stored::int8, false, false},
};

}  // namespace

Status *add_attention_operators(ort::Domain *domain) { return add_operators(domain, forms, sizeof forms / sizeof *forms, create, compute, free); }

}  // namespace hfx
