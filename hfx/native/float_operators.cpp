// The operators for the computations between the integer products: LayerNorm, RmsNorm and UnitNorm; FloatLinear, a head
// of a few labels, or a product that stays float32, with its activation; TokenSum, which pools tokens; and LogSoftmax.
// Each row is computed by itself. One thread computes all rows if there is little to do.
#include "floats.h"
#include "context.h"
#include <stdlib.h>
#include <string.h>

namespace hfx {
namespace {

enum class Kind { layer_norm, rms_norm, unit_norm, linear, token_sum, log_softmax };

struct Form : ort::Operator {
    const char *title;
    Kind kind;
    size_t inputs;
    Activation activation;  // of a linear

    bool is_norm() const { return kind <= Kind::unit_norm; }
};

// Constants stay where ONNX Runtime has them.
struct Node {
    const Form *form;
    Norm norm;
    const float *weight, *bias;  // of a linear, [outputs][inputs] and [outputs]
    long inputs, outputs;
};

Status *read_norm(const ort::KernelInfo *info, const Form &form, Norm &norm) {
    constexpr NormKind KINDS[] = {NormKind::layer, NormKind::rms, NormKind::unit};
    Tensor weight = {}, bias = {};
    norm.kind = KINDS[int(form.kind)];
    HFX_TRY(api->attribute(info, "epsilon", &norm.epsilon));
    if (form.inputs > 1) HFX_TRY(read_constant(info, 1, weight));
    if (form.inputs > 2) HFX_TRY(read_constant(info, 2, bias));
    norm.width = weight.shape.elements(), norm.weight = weight.as<float>(), norm.bias = bias.as<float>();
    if (form.inputs > 2 && bias.shape.elements() != norm.width) return invalid("hfx: the biases of a norm don't fit its weights");
    return nullptr;
}

Status *read_linear(const ort::KernelInfo *info, Node &node) {
    Tensor weight, bias;
    HFX_TRY(read_constant(info, 1, weight));
    HFX_TRY(read_constant(info, 2, bias));
    if (weight.shape.rank != 2 || bias.shape.elements() != weight.shape.sizes[0] || weight.shape.elements() < 1)
        return invalid("hfx: weights must be [outputs, inputs], and biases [outputs]");
    node.weight = weight.as<float>(), node.bias = bias.as<float>();
    node.outputs = weight.shape.sizes[0], node.inputs = weight.shape.sizes[1];
    return nullptr;
}

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    const Form &form = *static_cast<const Form *>(op);
    Node made = {};
    made.form = &form;
    if (form.is_norm()) HFX_TRY(read_norm(info, form, made.norm));
    if (form.kind == Kind::linear) HFX_TRY(read_linear(info, made));
    Node *node = static_cast<Node *>(malloc(sizeof(Node)));
    if (!node) return api->fail(ort::FAIL, "hfx: out of memory");
    *node = made;
    *out = node;
    return nullptr;
}

struct Run {
    const Node *node;
    const float *x, *weights;
    float *y;
    long rows, width, tokens;  // tokens of each row to sum
    long rows_a_task;
};

constexpr long DOT_ROWS_A_TASK = 32;

// Multiplies the rows from `first` to before `last` by the weights of 16 outputs, from `column` on.
void run_dots(const Run &run, long first, long last, long column) {
    const Node &node = *run.node;
    const long left = node.outputs - column;
    float sums[MOST_DOT_ROWS * MOST_DOTS] = {};
    Dots dots = {nullptr, node.weight + column * node.inputs, node.inputs, node.inputs, 0, int(left < MOST_DOTS ? left : MOST_DOTS), sums};
    for (long row = first; row < last; row += MOST_DOT_ROWS) {
        dots.x = run.x + row * node.inputs, dots.rows = int(last - row < MOST_DOT_ROWS ? last - row : MOST_DOT_ROWS);
        chosen->floats->dots(dots);
        for (int i = 0; i < dots.rows; i++) {
            float *sum = sums + i * MOST_DOTS;
            for (int j = 0; j < dots.count; j++) sum[j] += node.bias[column + j];
            if (node.form->activation != Activation::none) chosen->floats->activate_dots(node.form->activation, sum);
            memcpy(run.y + (row + i) * node.outputs + column, sum, size_t(dots.count) * sizeof(float));
        }
    }
}

void run_task(void *data, size_t task) {
    const Run &run = *static_cast<Run *>(data);
    const Node &node = *run.node;
    const long columns = (node.outputs + MOST_DOTS - 1) / MOST_DOTS, part = node.form->kind == Kind::linear ? long(task) / columns : long(task);
    const long first = part * run.rows_a_task, last = first + run.rows_a_task < run.rows ? first + run.rows_a_task : run.rows;
    if (node.form->kind == Kind::linear) return run_dots(run, first, last, long(task) % columns * MOST_DOTS);
    for (long row = first; row < last; row++) {
        const float *x = run.x + row * run.tokens * run.width;
        float *y = run.y + row * run.width;
        if (node.form->kind == Kind::token_sum) chosen->floats->weighted_sum(run.weights + row * run.tokens, x, run.tokens, run.width, y);
        else if (node.form->kind == Kind::log_softmax) chosen->floats->log_softmax(x, run.width, y);
        else {
            Norm norm = node.norm;
            norm.width = run.width;
            chosen->floats->norm(norm, x, y);
        }
    }
}

constexpr long ALONE = 32768;  // numbers that are read; up to this many, threads cost more than they save

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    const Kind kind = node.form->kind;
    Tensor x, hidden;
    HFX_TRY(read_input(context, 0, x));
    if (!x.shape.rank) return invalid("hfx: the rows must have a dimension");
    Run run = {&node, x.as<float>(), nullptr, nullptr, x.shape.rows(), x.shape.last(), 1, 1};
    int64_t last = run.width;
    if (kind == Kind::linear) last = node.outputs;
    if (kind == Kind::linear ? run.width != node.inputs : node.norm.weight && run.width != node.norm.width)
        return invalid("hfx: the rows don't fit the weights");
    if (kind == Kind::token_sum) {
        HFX_TRY(read_input(context, 1, hidden));
        const int64_t *sizes = hidden.shape.sizes;
        if (x.shape.rank != 2 || hidden.shape.rank != 3 || sizes[0] != x.shape.sizes[0] || sizes[1] != x.shape.sizes[1])
            return invalid("hfx: weights must be [rows, tokens], and what is summed [rows, tokens, width]");
        run.weights = run.x, run.x = hidden.as<float>(), run.tokens = sizes[1], last = run.width = sizes[2];
    }
    HFX_TRY(make_output(context, 0, x.shape, last, reinterpret_cast<void **>(&run.y)));
    if (!run.rows || !last) return nullptr;
    const long columns = kind == Kind::linear ? (node.outputs + MOST_DOTS - 1) / MOST_DOTS : 1, row = run.width * run.tokens;
    run.rows_a_task = kind == Kind::linear ? DOT_ROWS_A_TASK : row < ALONE / 8 ? (ALONE / 8 + row - 1) / (row + !row) : 1;
    const long tasks = (run.rows + run.rows_a_task - 1) / run.rows_a_task * columns;
    if (tasks > 1 && run.rows * row * columns > ALONE) return api->parallel(context, run_task, size_t(tasks), &run);
    for (long task = 0; task < tasks; task++) run_task(&run, size_t(task));
    return nullptr;
}

const Form &form(const ort::Operator *op) { return *static_cast<const Form *>(op); }
const char *name(const ort::Operator *op) { return form(op).title; }
size_t input_count(const ort::Operator *op) { return form(op).inputs; }
int float_type(const ort::Operator *, size_t) { return ort::FLOAT; }
size_t output_count(const ort::Operator *) { return 1; }

constexpr Activation NONE = Activation::none;

Form forms[] = {
    {{}, "LayerNorm", Kind::layer_norm, 3, NONE},
    {{}, "RmsNorm", Kind::rms_norm, 2, NONE},
    {{}, "UnitNorm", Kind::unit_norm, 1, NONE},
    {{}, "TokenSum", Kind::token_sum, 2, NONE},
    {{}, "LogSoftmax", Kind::log_softmax, 1, NONE},
    {{}, "FloatLinear", Kind::linear, 3, NONE},
    {{}, "FloatLinearRelu", Kind::linear, 3, Activation::relu},
    {{}, "FloatLinearGelu", Kind::linear, 3, Activation::gelu},
    {{}, "FloatLinearGeluTanh", Kind::linear, 3, Activation::gelu_tanh},
    {{}, "FloatLinearQuickGelu", Kind::linear, 3, Activation::quick_gelu},
    {{}, "FloatLinearSilu", Kind::linear, 3, Activation::silu},
    {{}, "FloatLinearTanh", Kind::linear, 3, Activation::tanh},
};

}  // namespace

Status *add_float_operators(ort::Domain *domain) {
    for (Form &op : forms) {
        fill_common(op);
        op.name = name;
        op.input_type = op.output_type = float_type;
        op.input_count = input_count, op.output_count = output_count;
        op.create = create, op.compute = compute, op.destroy = free;
        HFX_TRY(api->add_operator(domain, &op));
    }
    return nullptr;
}

}  // namespace hfx
