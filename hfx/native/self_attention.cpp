// Attention of all tokens of a text to each other, from queries, keys and values beside each other: SelfAttention with a
// mask, SourceAttention without. Behind the last token of a text, where that is given, results are 0.
#include "self_attention.h"
#include "context.h"
#include <stdlib.h>

namespace hfx {
namespace {

struct Form : ort::Operator {
    const char *title;
    bool masked, biased;
};

struct Node {
    const Form *form;
    long heads;
    float scale;
};

struct Run {
    SelfAttention whole;  // pointers of the first row's first head; without a buffer
    long heads, rows;
    const int32_t *last;             // the last token of each row; or null
    long mask_of_row, mask_of_head;  // floats to the next
    int failed;
};

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    int64_t heads = 0;
    float scale = 0;
    HFX_TRY(api->attribute(info, "heads", &heads));
    HFX_TRY(api->attribute(info, "scale", &scale));
    if (heads < 1 || heads > 4096) return invalid("hfx: heads must be 1 to 4096");
    Node *node = static_cast<Node *>(malloc(sizeof(Node)));
    if (!node) return api->fail(ort::FAIL, "hfx: out of memory");
    *node = {static_cast<const Form *>(op), long(heads), scale};
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
    if (a.mask) a.mask += row * run.mask_of_row + head * run.mask_of_head;
    if (run.last) {
        const long length = run.last[row] + 1;
        for (long token = length; token < a.width; token++) memset(a.out + token * a.out_stride, 0, size_t(a.dim) * sizeof(float));
        a.width = length;
    }
    void *buffer = nullptr;
    if (posix_memalign(&buffer, 64, size_t(self_attention_buffer(a.width, a.dim)) * sizeof(float))) {
        __atomic_store_n(&run.failed, 1, __ATOMIC_RELAXED);
        return;
    }
    a.buffer = static_cast<float *>(buffer);
    chosen->self_attend(a);
    free(buffer);
}

// A mask or bias [1 or rows, 1 or heads, 1 or width, width], whose first three may be one for all.
Status *read_mask(ort::KernelContext *context, size_t index, Run &run) {
    Tensor mask;
    HFX_TRY(read_input(context, index, mask));
    const int64_t *sizes = mask.shape.sizes;
    const long width = run.whole.width;
    if (mask.shape.rank != 4 || (sizes[0] != 1 && sizes[0] != run.rows) || (sizes[1] != 1 && sizes[1] != run.heads) ||
        (sizes[2] != 1 && sizes[2] != width) || sizes[3] != width)
        return invalid("hfx: the mask doesn't fit the rows");
    run.whole.mask = mask.as<float>();
    run.whole.mask_stride = sizes[2] == 1 ? 0 : width;
    run.mask_of_head = sizes[1] == 1 ? 0 : sizes[2] * width;
    run.mask_of_row = sizes[0] == 1 ? 0 : sizes[1] * sizes[2] * width;
    return nullptr;
}

// x [rows, width, 3 * heads * dim], a mask and, optional, the last token of each row; or x [rows * width, 3 * heads * dim],
// the last token of each row, two inputs that only the definition in the file needs, and with a bias that.
Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    Tensor x, last = {};
    HFX_TRY(read_input(context, 0, x));
    if (x.shape.rank != (node.form->masked ? 3 : 2)) return invalid("hfx: attention reads [rows, width, 3 * heads * dim], or tokens of that width");
    HFX_TRY(read_optional_input(context, node.form->masked ? 2 : 1, last));
    const long rows = node.form->masked ? x.shape.sizes[0] : last.shape.elements(), tokens = x.shape.rows();
    const long width = node.form->masked ? x.shape.sizes[1] : rows ? tokens / rows : 0, inner = x.shape.last() / 3, dim = inner / node.heads;
    if (!dim || dim % SELF_ATTENTION_STEP || x.shape.last() != 3 * node.heads * dim)
        return invalid("hfx: the size of a head must be a multiple of 16");
    if (rows * width != tokens || (last.data && last.shape.elements() != rows)) return invalid("hfx: there must be a length for each row");
    const float *first = x.as<float>();
    Run run = {{first, first + inner, first + 2 * inner, nullptr, nullptr, nullptr, width, dim, 3 * inner, inner, 0, node.scale},
               node.heads, rows, last.as<int32_t>(), 0, 0, 0};
    for (long row = 0; run.last && row < rows; row++)
        if (run.last[row] < 0 || run.last[row] >= width) return invalid("hfx: a length doesn't fit the rows");
    if (node.form->masked) HFX_TRY(read_mask(context, 1, run));
    if (node.form->biased) HFX_TRY(read_mask(context, 4, run));
    HFX_TRY(make_output(context, 0, x.shape, inner, reinterpret_cast<void **>(&run.whole.out)));
    if (!rows || !width) return nullptr;
    HFX_TRY(api->parallel(context, attend_head, size_t(rows * node.heads), &run));
    return run.failed ? api->fail(ort::FAIL, "hfx: out of memory") : nullptr;
}

const Form &form(const ort::Operator *op) { return *static_cast<const Form *>(op); }
const char *name(const ort::Operator *op) { return form(op).title; }
size_t input_count(const ort::Operator *op) { return form(op).masked ? 3 : form(op).biased ? 5 : 4; }
int input_type(const ort::Operator *op, size_t index) {
    if (form(op).masked) return index == 2 ? ort::INT32 : ort::FLOAT;
    if (index == 0 || index == 4) return ort::FLOAT;
    return index == 3 ? ort::INT64 : ort::INT32;
}
int input_characteristic(const ort::Operator *op, size_t index) {
    return form(op).masked && index == 2 ? ort::OPTIONAL : ort::REQUIRED;
}
size_t output_count(const ort::Operator *) { return 1; }
int output_type(const ort::Operator *, size_t) { return ort::FLOAT; }

Form forms[] = {
    {{}, "SelfAttention", true, false},
    {{}, "SourceAttention", false, false},
    {{}, "SourceAttentionBias", false, true},
};

}  // namespace

Status *add_self_attention(ort::Domain *domain) {
    for (Form &op : forms) {
        fill_common(op);
        op.name = name;
        op.input_type = input_type, op.output_type = output_type, op.input_characteristic = input_characteristic;
        op.input_count = input_count, op.output_count = output_count;
        op.create = create, op.compute = compute, op.destroy = free;
        HFX_TRY(api->add_operator(domain, &op));
    }
    return nullptr;
}

}  // namespace hfx
