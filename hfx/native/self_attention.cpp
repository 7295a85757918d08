// SelfAttention: attention of all tokens of a text to each other, from queries, keys and values beside each other.
#include "self_attention.h"
#include "context.h"
#include <stdlib.h>

namespace hfx {
namespace {

struct Node {
    long heads;
    float scale;
};

struct Run {
    SelfAttention whole;  // pointers of the first row's first head; without a buffer
    long heads, rows;
    long mask_of_row, mask_of_head;  // floats to the next
    int failed;
};

Status *create(const ort::Operator *, const Api *, const ort::KernelInfo *info, void **out) {
    int64_t heads = 0;
    float scale = 0;
    HFX_TRY(api->attribute(info, "heads", &heads));
    HFX_TRY(api->attribute(info, "scale", &scale));
    if (heads < 1 || heads > 4096) return invalid("hfx: heads must be 1 to 4096");
    Node *node = static_cast<Node *>(malloc(sizeof(Node)));
    if (!node) return api->fail(ort::FAIL, "hfx: out of memory");
    *node = {long(heads), scale};
    *out = node;
    return nullptr;
}

void attend_head(void *data, size_t task) {
    Run &run = *static_cast<Run *>(data);
    const long row = long(task) / run.heads, head = long(task) % run.heads;
    SelfAttention a = run.whole;
    a.query += row * a.width * a.stride + head * a.dim;
    a.key += row * a.width * a.stride + head * a.dim;
    a.value += row * a.width * a.stride + head * a.dim;
    a.out += row * a.width * a.out_stride + head * a.dim;
    a.mask += row * run.mask_of_row + head * run.mask_of_head;
    void *buffer = nullptr;
    if (posix_memalign(&buffer, 64, size_t(self_attention_buffer(a.width, a.dim)) * sizeof(float))) {
        __atomic_store_n(&run.failed, 1, __ATOMIC_RELAXED);
        return;
    }
    a.buffer = static_cast<float *>(buffer);
    chosen->self_attend(a);
    free(buffer);
}

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    Tensor x, mask;
    HFX_TRY(read_input(context, 0, x));
    HFX_TRY(read_input(context, 1, mask));
    if (x.shape.rank != 3 || mask.shape.rank != 4) return invalid("hfx: attention reads [rows, width, 3 * heads * dim] and a mask of 4 dimensions");
    const int64_t *sizes = mask.shape.sizes;
    const long rows = x.shape.sizes[0], width = x.shape.sizes[1], inner = x.shape.last() / 3, dim = inner / node.heads;
    if (!dim || dim % SELF_ATTENTION_STEP || x.shape.last() != 3 * node.heads * dim)
        return invalid("hfx: the size of a head must be a multiple of 16");
    if ((sizes[0] != 1 && sizes[0] != rows) || (sizes[1] != 1 && sizes[1] != node.heads) || (sizes[2] != 1 && sizes[2] != width) || sizes[3] != width)
        return invalid("hfx: the mask doesn't fit the rows");
    const float *first = x.as<float>();
    const long of_query = sizes[2] == 1 ? 0 : width, of_head = sizes[1] == 1 ? 0 : sizes[2] * width;
    const long of_row = sizes[0] == 1 ? 0 : sizes[1] * sizes[2] * width;
    float *y = nullptr;
    HFX_TRY(make_output(context, 0, x.shape, inner, reinterpret_cast<void **>(&y)));
    Run run = {{first, first + inner, first + 2 * inner, mask.as<float>(), y, nullptr, width, dim, 3 * inner, inner, of_query, node.scale},
               node.heads, rows, of_row, of_head, 0};
    if (!rows || !width) return nullptr;
    HFX_TRY(api->parallel(context, attend_head, size_t(rows * node.heads), &run));
    return run.failed ? api->fail(ort::FAIL, "hfx: out of memory") : nullptr;
}

const char *name(const ort::Operator *) { return "SelfAttention"; }
size_t input_count(const ort::Operator *) { return 2; }
size_t output_count(const ort::Operator *) { return 1; }
int float_type(const ort::Operator *, size_t) { return ort::FLOAT; }

ort::Operator self_attention = {};

}  // namespace

Status *add_self_attention(ort::Domain *domain) {
    fill_common(self_attention);
    self_attention.name = name;
    self_attention.input_type = self_attention.output_type = float_type;
    self_attention.input_count = input_count, self_attention.output_count = output_count;
    self_attention.create = create, self_attention.compute = compute, self_attention.destroy = free;
    return api->add_operator(domain, &self_attention);
}

}  // namespace hfx
