// CachedAttention and CrossAttention: attention of a decoder to keys and values that stand in a cache.
//
// Caches are inputs and outputs at once, bound to the same memory: only the new positions are written. They are
// [rows, heads, capacity, dim].
#include "attention.h"
#include "context.h"
#include <stdlib.h>

namespace hfx {
namespace {

struct Form : ort::Operator {
    const char *title;
    bool cross, bytes, biased;
};

struct Node {
    const Form *form;
    long heads, beams;
    float scale;
};

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    const Form &form = *static_cast<const Form *>(op);
    int64_t heads = 0, beams = 1;
    float scale = 0;
    HFX_TRY(api->attribute(info, "heads", &heads));
    HFX_TRY(api->attribute(info, "scale", &scale));
    if (form.cross) HFX_TRY(api->attribute(info, "beams", &beams));
    if (heads < 1 || heads > 4096 || beams < 1 || beams > 4096) return invalid("hfx: heads and beams must be 1 to 4096");
    Node *node = static_cast<Node *>(malloc(sizeof(Node)));
    if (!node) return api->fail(ort::FAIL, "hfx: out of memory");
    *node = {&form, long(heads), long(beams), scale};
    *out = node;
    return nullptr;
}

// A cache's memory, and the output that is bound to it; copied where the caller bound other memory.
Status *read_cache(ort::KernelContext *context, size_t input, size_t output, size_t bytes, Tensor &cache, void **present) {
    HFX_TRY(read_input(context, input, cache));
    if (cache.shape.rank != 4) return invalid("hfx: a cache must be [rows, heads, capacity, dim]");
    ort::Value *value = nullptr;
    HFX_TRY(api->output(context, output, cache.shape.sizes, 4, &value));
    HFX_TRY(api->data(value, present));
    if (*present != cache.data) memcpy(*present, cache.data, size_t(cache.shape.elements()) * bytes);
    return nullptr;
}

// One run. A task is a head of a row, for a few of its queries at a time.
struct Run {
    const Node *node;
    long rows, heads, tokens, dim, capacity;  // tokens a row: of a prompt or a step, or of all beams of a request
    const float *queries;                     // [rows * tokens][query_stride]
    long query_stride;
    uint8_t *keys, *values;
    size_t bytes;  // of a number in the caches
    const int32_t *last;
    long start;  // the position of a prompt's first token; -1: that of a step is its row's own
    const float *bias;
    long bias_rows, bias_queries, bias_positions;
    const float *key_scale, *value_scale;
    float *out;  // [rows * tokens][heads * dim]

    uint8_t *head(uint8_t *cache, long row, long h) const { return cache + size_t((row * heads + h) * capacity * dim) * bytes; }

    void append(long row, long h, long first, long count) const {
        for (long token = 0; token < count; token++) {
            const float *qkv = queries + (row * tokens + token) * query_stride;
            size_t at = size_t((first + token) * dim) * bytes, size = size_t(dim) * bytes;
            memcpy(head(keys, row, h) + at, qkv + (heads + h) * dim, size);
            memcpy(head(values, row, h) + at, qkv + (2 * heads + h) * dim, size);
        }
    }

    void task(long index) const {
        long row = index / heads, h = index % heads, length = last[row] + 1;
        long first = node->form->cross ? 0 : start < 0 ? last[row] : start;
        long real = node->form->cross ? tokens : length - first < tokens ? length - first : tokens;
        if (!node->form->cross) append(row, h, first, real);
        for (long token = 0; token < tokens; token += MOST_QUERIES) {
            Attention a = {};
            a.keys = head(keys, row, h), a.values = head(values, row, h);
            if (index + 1 < rows * heads && token + MOST_QUERIES >= tokens) {
                a.next_keys = head(keys, (index + 1) / heads, (index + 1) % heads);
                a.next_values = head(values, (index + 1) / heads, (index + 1) % heads);
            }
            a.dim = dim, a.scale = node->scale;
            if (key_scale) a.key_scale = key_scale + (row * heads + h) * dim, a.value_scale = value_scale + (row * heads + h) * dim;
            for (long t = token; t < tokens && t < token + MOST_QUERIES; t++) {
                float *to = out + ((row * tokens + t) * heads + h) * dim;
                if (t >= real) {
                    memset(to, 0, size_t(dim) * sizeof(float));
                    continue;
                }
                int q = a.count++;
                a.out[q] = to;
                a.queries[q] = queries + (row * tokens + t) * query_stride + h * dim;
                a.lengths[q] = node->form->cross ? length : first + t + 1;
                if (bias) a.bias[q] = bias + (((bias_rows == 1 ? 0 : row) * heads + h) * bias_queries + (bias_queries == 1 ? 0 : t)) * bias_positions;
            }
            if (a.count) chosen->attend(a);
        }
    }
};

void run_task(void *data, size_t index) { static_cast<const Run *>(data)->task(long(index)); }

Status *check_caches(const Node &node, const Tensor &keys, const Tensor &values) {
    for (size_t i = 0; i < 4; i++)
        if (keys.shape.sizes[i] != values.shape.sizes[i]) return invalid("hfx: the caches of keys and values differ");
    if (keys.shape.sizes[1] != node.heads) return invalid("hfx: the caches have another number of heads");
    long dim = keys.shape.sizes[3];
    if (dim < 1 || dim > LARGEST_HEAD) return invalid("hfx: a head must have 1 to 256 values");
    return nullptr;
}

Status *check_lengths(const Tensor &last, long rows, long least, long capacity) {
    if (last.shape.elements() != rows) return invalid("hfx: there must be a length for each row of the caches");
    for (long row = 0; row < rows; row++)
        if (last.as<int32_t>()[row] < least || last.as<int32_t>()[row] >= capacity) return invalid("hfx: a row is longer than its cache");
    return nullptr;
}

// qkv [rows * tokens, 3 * heads * dim], past_k, past_v, the last position of each row, the longest row's length.
Status *run_cached(const Node &node, ort::KernelContext *context) {
    Tensor qkv, keys, values, last, total, bias = {};
    Run run = {};
    void *present_keys, *present_values;
    HFX_TRY(read_input(context, 0, qkv));
    HFX_TRY(read_cache(context, 1, 1, sizeof(float), keys, &present_keys));
    HFX_TRY(read_cache(context, 2, 2, sizeof(float), values, &present_values));
    HFX_TRY(read_input(context, 3, last));
    HFX_TRY(read_input(context, 4, total));
    HFX_TRY(check_caches(node, keys, values));
    long rows = keys.shape.sizes[0], dim = keys.shape.sizes[3], width = node.heads * dim, longest = *total.as<int32_t>();
    if (qkv.shape.last() != 3 * width || (rows ? qkv.shape.rows() % rows : qkv.shape.rows())) return invalid("hfx: queries don't fit the caches");
    long tokens = rows ? qkv.shape.rows() / rows : 0, start = tokens == 1 ? -1 : longest - tokens;
    HFX_TRY(check_lengths(last, rows, start < 0 ? 0 : start, keys.shape.sizes[2]));
    if (tokens > 1 && (start < 0 || longest > keys.shape.sizes[2])) return invalid("hfx: the total length doesn't fit the caches");
    run = {&node, rows, node.heads, tokens, dim, keys.shape.sizes[2], qkv.as<float>(), 3 * width,
           static_cast<uint8_t *>(present_keys), static_cast<uint8_t *>(present_values), sizeof(float), last.as<int32_t>(),
           start, nullptr, 0, 0, 0, nullptr, nullptr, nullptr};
    if (node.form->biased) {
        HFX_TRY(read_input(context, 6, bias));
        const int64_t *sizes = bias.shape.sizes;
        if (bias.shape.rank != 4 || (sizes[0] != 1 && sizes[0] != rows) || sizes[1] != node.heads || (sizes[2] != 1 && sizes[2] != tokens))
            return invalid("hfx: the bias must be [rows, heads, tokens, positions]");
        for (long row = 0; row < rows; row++)
            if (last.as<int32_t>()[row] >= sizes[3]) return invalid("hfx: the bias has too few positions");
        run.bias = bias.as<float>(), run.bias_rows = sizes[0], run.bias_queries = sizes[2], run.bias_positions = sizes[3];
    }
    Shape shape = {{rows * tokens, width}, 2};
    HFX_TRY(make_output(context, 0, shape, width, reinterpret_cast<void **>(&run.out)));
    return rows * tokens > 0 ? api->parallel(context, run_task, size_t(rows * node.heads), &run) : nullptr;
}

// query [requests * beams * tokens, heads * dim], past_k, past_v, the last position of each request; in int8 the scales of both
// [requests, heads * dim].
Status *run_cross(const Node &node, ort::KernelContext *context) {
    Tensor query, keys, values, last, key_scale = {}, value_scale = {};
    void *present_keys, *present_values;
    size_t bytes = node.form->bytes ? 1 : sizeof(float);
    HFX_TRY(read_input(context, 0, query));
    HFX_TRY(read_cache(context, 1, 1, bytes, keys, &present_keys));
    HFX_TRY(read_cache(context, 2, 2, bytes, values, &present_values));
    HFX_TRY(read_input(context, 3, last));
    HFX_TRY(check_caches(node, keys, values));
    long requests = keys.shape.sizes[0], dim = keys.shape.sizes[3], width = node.heads * dim;
    if (query.shape.last() != width || (requests ? query.shape.rows() % (requests * node.beams) : query.shape.rows())) return invalid("hfx: queries don't fit the caches");
    HFX_TRY(check_lengths(last, requests, 0, keys.shape.sizes[2]));
    long queries = requests ? query.shape.rows() / requests : 0;
    if (node.form->bytes) {
        HFX_TRY(read_input(context, 4, key_scale));
        HFX_TRY(read_input(context, 5, value_scale));
        if (key_scale.shape.elements() != requests * width || value_scale.shape.elements() != requests * width)
            return invalid("hfx: the scales don't fit the caches");
    }
    Run run = {&node, requests, node.heads, queries, dim, keys.shape.sizes[2], query.as<float>(), width,
               static_cast<uint8_t *>(present_keys), static_cast<uint8_t *>(present_values), bytes, last.as<int32_t>(),
               0, nullptr, 0, 0, 0, key_scale.as<float>(), value_scale.as<float>(), nullptr};
    Shape shape = {{requests * queries, width}, 2};
    HFX_TRY(make_output(context, 0, shape, width, reinterpret_cast<void **>(&run.out)));
    return requests * queries > 0 ? api->parallel(context, run_task, size_t(requests * node.heads), &run) : nullptr;
}

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    return node.form->cross ? run_cross(node, context) : run_cached(node, context);
}

const Form &form(const ort::Operator *op) { return *static_cast<const Form *>(op); }
const char *name(const ort::Operator *op) { return form(op).title; }
// Behind what is read here stand inputs that only the operators' definitions in the file need.
size_t input_count(const ort::Operator *op) { return form(op).cross ? (form(op).bytes ? 9 : 7) : form(op).biased ? 7 : 6; }
int cache_type(const ort::Operator *op) { return form(op).bytes ? ort::INT8 : ort::FLOAT; }
int input_type(const ort::Operator *op, size_t index) {
    if (index == 1 || index == 2) return cache_type(op);
    if (index == 3 || index == (form(op).cross ? input_count(op) - 1 : 4)) return ort::INT32;
    return index == 5 && !form(op).cross ? ort::INT64 : ort::FLOAT;
}
size_t output_count(const ort::Operator *) { return 3; }
int output_type(const ort::Operator *op, size_t index) { return index ? cache_type(op) : ort::FLOAT; }

Form forms[] = {
    {{}, "CachedAttention", false, false, false},
    {{}, "CachedAttentionBias", false, false, true},
    {{}, "CrossAttention", true, false, false},
    {{}, "CrossAttentionInt8", true, true, false},
};

}  // namespace

Status *add_attention_operators(ort::Domain *domain) {
    for (Form &op : forms) {
        fill_common(op);
        op.name = name;
        op.input_type = input_type, op.input_count = input_count;
        op.output_type = output_type, op.output_count = output_count;
        op.create = create, op.compute = compute, op.destroy = free;
        HFX_TRY(api->add_operator(domain, &op));
    }
    return nullptr;
}

}  // namespace hfx
