// The operators for the computations between the integer products: LayerNorm, RmsNorm and UnitNorm; FloatLinear, a head
// of a few labels, or a product that stays float32, with its activation or residual; TokenSum, which pools tokens; and
// LogSoftmax. A linear computes nothing for padding, if it gets the last token of each text, and writes zeros.
// Each row is computed by itself. One thread computes all rows if there is little to do.
#include "floats.h"
#include "context.h"
#include "huge_pages.h"
#include "trial.h"

namespace hfx {
namespace {

enum class Kind { layer_norm, rms_norm, unit_norm, linear, token_sum, log_softmax };

struct Form : Described {
    Kind kind;
    size_t count;           // of inputs
    Activation activation;  // of a linear
    bool residual;          // of a linear, its last input but for the last tokens of texts
    bool rounded;           // a linear in bfloat16

    bool is_norm() const { return kind <= Kind::unit_norm; }
    size_t inputs() const { return count + (kind == Kind::linear); }
    int type(size_t input) const { return is_optional(input) ? ort::INT32 : rounded && input == 1 ? ort::BFLOAT16 : ort::FLOAT; }
    bool is_optional(size_t input) const { return kind == Kind::linear && input == count; }
};

// Constants stay where ONNX Runtime has them, but for the panels of a linear.
struct Node {
    const Form *form;
    Norm norm;
    const void *weight;  // of a linear, [outputs][inputs]
    const float *bias;   // [outputs]
    long inputs, outputs, depth;  // depth: of the panels, the inputs or pairs of them
    bool in_pairs;
    const float *panels;  // the weights of a large linear, [outputs / PANEL][PANEL / 16][depth][16]; null for others
};

Status *read_norm(const ort::KernelInfo *info, const Form &form, Norm &norm) {
    Tensor weight = {}, bias = {};
    norm.kind = NormKind(form.kind);
    HFX_TRY(api->attribute(info, "epsilon", &norm.epsilon));
    if (form.count > 1) HFX_TRY(read_constant(info, 1, weight));
    if (form.count > 2) HFX_TRY(read_constant(info, 2, bias));
    norm.width = weight.shape.elements(), norm.weight = weight.as<float>(), norm.bias = bias.as<float>();
    if (form.count > 2 && bias.shape.elements() != norm.width) return invalid("hfx: the biases of a norm don't fit its weights");
    return nullptr;
}

Status *read_linear(const ort::KernelInfo *info, Node &node) {
    Tensor weight, bias;
    HFX_TRY(read_constant(info, 1, weight));
    HFX_TRY(read_constant(info, 2, bias));
    if (weight.shape.rank != 2 || bias.shape.elements() != weight.shape.sizes[0] || weight.shape.elements() < 1)
        return invalid("hfx: weights must be [outputs, inputs], and biases [outputs]");
    node.weight = weight.data, node.bias = bias.as<float>();
    node.outputs = weight.shape.sizes[0], node.inputs = node.depth = weight.shape.sizes[1];
    node.in_pairs = node.form->rounded && should_multiply_pairs(*chosen->floats);
    if (node.in_pairs) node.depth = (node.inputs + 1) / 2;
    return nullptr;
}

// From so many outputs on, a product is faster in panels. Larger float32 weights than these stay where they are, to save
// memory. Weights in bfloat16 always have panels.
constexpr long LEAST_PANELS = 2 * PANEL, MOST_PANELS = 1l << 24;

// The bits of a weight as float32, which is 0 behind the last output or input.
uint32_t bits_of(const Node &node, long output, long input) {
    uint32_t bits = 0;
    if (output >= node.outputs || input >= node.inputs) return 0;
    const long at = output * node.inputs + input;
    if (!node.form->rounded) return memcpy(&bits, static_cast<const float *>(node.weight) + at, sizeof bits), bits;
    bits = uint32_t(static_cast<const uint16_t *>(node.weight)[at]) << 16;
    return (bits & 0x7fffffffu) < LEAST_ROUNDED ? 0 : bits;
}

// Copies the weights, with zeros behind the last output. Nodes and sessions of equal weights share a copy.
bool make_panels(Node &node) {
    const long panels = (node.outputs + PANEL - 1) / PANEL;
    if (!node.form->rounded && (node.outputs < LEAST_PANELS || panels * PANEL * node.inputs > MOST_PANELS)) return true;
    const size_t bytes = size_t(panels * PANEL * node.depth) * sizeof(uint32_t);
    uint32_t *panel = static_cast<uint32_t *>(aligned_alloc(64, bytes)), *to = panel;
    if (!panel) return false;
    for (long first = 0; first < panels * PANEL; first += MOST_DOTS)
        for (long k = 0; k < node.depth; k++)
            for (long i = first; i < first + MOST_DOTS; i++)
                *to++ = node.in_pairs ? bits_of(node, i, 2 * k) | bits_of(node, i, 2 * k + 1) >> 16 : bits_of(node, i, k);
    leave_file(node.weight, size_t(node.outputs * node.inputs) * (node.form->rounded ? sizeof(uint16_t) : sizeof(float)));
    node.panels = reinterpret_cast<const float *>(in_huge_pages(reinterpret_cast<int8_t *>(panel), bytes));
    if (static_cast<const void *>(node.panels) != panel) free(panel);
    return true;
}

void free_panels(const Node &node) {
    if (!leave_huge_pages(reinterpret_cast<const int8_t *>(node.panels))) free(const_cast<float *>(node.panels));
}

Status *create(const ort::Operator *op, const Api *, const ort::KernelInfo *info, void **out) {
    const Form &form = *static_cast<const Form *>(op);
    Node made = {};
    made.form = &form;
    if (form.is_norm()) HFX_TRY(read_norm(info, form, made.norm));
    if (form.kind == Kind::linear) HFX_TRY(read_linear(info, made));
    if (form.kind == Kind::linear && !make_panels(made)) return out_of_memory();
    Status *status = store(made, out);
    if (status) free_panels(made);
    return status;
}

struct Run {
    const Node *node;
    const float *x, *weights, *residual;
    float *y;
    long rows, width, tokens;  // tokens of each row to sum
    long rows_a_task, width_a_task, columns;  // outputs of a task, and the tasks of the same rows
    const int32_t *places;  // the numbers of the rows that are no padding and, behind them, of the padding; or null
    long padding;
    float *rounded;  // [rows][depth], of a linear in bfloat16
};

constexpr long DOT_ROWS_A_TASK = 32, PANEL_ROWS_A_TASK = 96;

// Multiplies the rows from `first` to before `last` by the weights of the outputs from `column` to before `end`.
void run_linear(const Run &run, long first, long last, long column, long end) {
    const Node &node = *run.node;
    float sums[MOST_PANEL_ROWS * PANEL];
    const float *weights = (node.panels ? node.panels : static_cast<const float *>(node.weight)) + column * node.depth;
    const float *residual = run.residual ? run.residual + column : nullptr;
    // With places, the rows of dot products are not side by side.
    const long most = node.panels ? MOST_PANEL_ROWS : run.places ? 1 : MOST_DOT_ROWS;
    for (long row = first; row < last; row += most) {
        const int rows = int(smaller(last - row, most));
        const int32_t *places = run.places ? run.places + row : nullptr;
        const long start = places ? 0 : row;
        const auto multiply = node.in_pairs ? chosen->floats->pairs : chosen->floats->panels;
        if (node.form->rounded) multiply({run.x + row * node.depth, weights, nullptr, node.depth, rows, sums});
        else if (node.panels) multiply({run.x + start * node.inputs, weights, places, node.inputs, rows, sums});
        else chosen->floats->dots({run.x + (places ? *places : row) * node.inputs, weights, node.inputs, node.inputs, rows, int(end - column), sums});
        chosen->floats->finish({sums, node.bias + column, residual ? residual + start * node.outputs : nullptr, run.y + start * node.outputs + column, places,
                                node.panels ? PANEL : MOST_DOTS, node.outputs, end - column, rows, node.form->activation});
    }
    for (long i = 0; i < run.padding && !first; i++)
        memset(run.y + run.places[run.rows + i] * node.outputs + column, 0, size_t(end - column) * sizeof(float));
}

void run_task(void *data, size_t task) {
    const Run &run = *static_cast<Run *>(data);
    const Node &node = *run.node;
    const long part = long(task) / run.columns, column = long(task) % run.columns * run.width_a_task;
    const long first = part * run.rows_a_task, last = smaller(first + run.rows_a_task, run.rows);
    if (node.form->kind == Kind::linear) return run_linear(run, first, last, column, smaller(column + run.width_a_task, node.outputs));
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

constexpr long ROUNDED_A_TASK = 16;

void round_task(void *data, size_t task) {
    const Run &run = *static_cast<Run *>(data);
    const Node &node = *run.node;
    for (long row = long(task) * ROUNDED_A_TASK, last = smaller(row + ROUNDED_A_TASK, run.rows); row < last; row++)
        chosen->floats->to_bfloat16(run.x + (run.places ? run.places[row] : row) * node.inputs, node.inputs, node.in_pairs, run.rounded + row * node.depth);
}

// Rounds the rows to bfloat16, without those of padding.
Status *round_rows(ort::KernelContext *context, Scratch &scratch, Run &run) {
    HFX_TRY(scratch.take(context, size_t(run.rows * run.node->depth) * sizeof(float)));
    run.rounded = static_cast<float *>(scratch.memory);
    HFX_TRY(run_tasks(context, round_task, (run.rows + ROUNDED_A_TASK - 1) / ROUNDED_A_TASK, run.rows * run.width, &run));
    run.x = run.rounded;
    return nullptr;
}

// Reads the last tokens of texts, if the node has them.
Status *skip_padding(ort::KernelContext *context, Scratch &scratch, Run &run) {
    Tokens tokens;
    HFX_TRY(tokens.read(context, run.node->form->count, run.rows));
    if (!tokens.padded()) return nullptr;
    HFX_TRY(scratch.take(context, size_t(tokens.all) * sizeof(int32_t)));
    tokens.write(static_cast<int32_t *>(scratch.memory));
    run.places = static_cast<int32_t *>(scratch.memory), run.rows = tokens.count, run.padding = tokens.all - tokens.count;
    return nullptr;
}

Status *compute(void *data, ort::KernelContext *context) {
    const Node &node = *static_cast<Node *>(data);
    const Kind kind = node.form->kind;
    Tensor x, hidden;
    HFX_TRY(read_input(context, 0, x));
    if (!x.shape.rank) return invalid("hfx: the rows must have a dimension");
    Run run = {&node, x.as<float>(), nullptr, nullptr, nullptr, x.shape.rows(), x.shape.last(), 1, 1, 1, 1, nullptr, 0, nullptr};
    Scratch scratch, rounded;
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
    const long row = run.width * run.tokens;
    run.rows_a_task = row < ALONE / 8 ? (ALONE / 8 + row - 1) / (row + !row) : 1;
    if (kind == Kind::linear) {
        Tensor residual = {};
        if (node.form->residual) HFX_TRY(read_input(context, 3, residual));
        if (residual.data && residual.shape.elements() != run.rows * node.outputs) return invalid("hfx: the residual doesn't fit the product");
        run.residual = residual.as<float>();
        HFX_TRY(skip_padding(context, scratch, run));
        if (node.form->rounded) HFX_TRY(round_rows(context, rounded, run));
        run.rows_a_task = node.panels ? PANEL_ROWS_A_TASK : DOT_ROWS_A_TASK, run.width_a_task = node.panels ? PANEL : MOST_DOTS;
        run.columns = (node.outputs + run.width_a_task - 1) / run.width_a_task;
    }
    const long tasks = (run.rows + run.rows_a_task - 1) / run.rows_a_task * run.columns;
    return run_tasks(context, run_task, tasks, run.rows * row * run.columns * (node.panels ? PANEL / MOST_DOTS : 1), &run);
}

void destroy(void *node) {
    free_panels(*static_cast<Node *>(node));
    free(node);
}

constexpr size_t OTHERS = 7;
Form forms[OTHERS + 2 * ACTIVATION_COUNT] = {
    {{{}, "LayerNorm"}, Kind::layer_norm, 3, Activation::none, false, false},
    {{{}, "RmsNorm"}, Kind::rms_norm, 2, Activation::none, false, false},
    {{{}, "UnitNorm"}, Kind::unit_norm, 1, Activation::none, false, false},
    {{{}, "TokenSum"}, Kind::token_sum, 2, Activation::none, false, false},
    {{{}, "LogSoftmax"}, Kind::log_softmax, 1, Activation::none, false, false},
    {{{}, "FloatLinearAdd"}, Kind::linear, 4, Activation::none, true, false},
    {{{}, "Bfloat16LinearAdd"}, Kind::linear, 4, Activation::none, true, true},
};

}  // namespace

Status *add_float_operators(ort::Domain *domain) {
    for (size_t i = 0; i < 2 * ACTIVATION_COUNT; i++) {
        const auto &activation = ACTIVATIONS[i / 2];
        forms[OTHERS + i] = {titled(i % 2 ? "Bfloat16Linear" : "FloatLinear", activation.suffix), Kind::linear, 3, activation.activation, false, i % 2 != 0};
    }
    return add_operators(domain, forms, sizeof forms / sizeof *forms, create, compute, destroy);
}

}  // namespace hfx
