"""The operators of hfx/native, each with its definition as an ONNX function.

The native library runs a node of the domain "hfx" if the session has the library (python_backends/engine/sessions.py).
Otherwise ONNX Runtime replaces the node by the function when it opens the session, and unpacks the weights then: one
file serves both. The attention with float16 caches and the operators for adapters in int8 have no definition, since
they are written to files for native operators alone (CachedAttentionFloat16, CachedAttentionRotaryFloat16, Int8LowRank,
Int8AdapterLinear).

int8 quantizes each row of the activations by its own peak, so that a row's result is the same, to the bit, in any
batch; onnxruntime's DynamicQuantizeMatMul has one scale for all rows of a batch. int4 quantizes each block of inputs
that share a scale of the weights, as onnxruntime's MatMulNBits does, which is its definition.

The last input of a linear, of a LowRank and of a SelfAttention is optional: `last`, [texts] int32, the last token of
each text. The library computes nothing for the padding behind that token, and writes zeros; the definitions don't read
`last`.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx.parser

from hfx.exporter.graph.adapter_definitions import adapter_definitions
from hfx.exporter.graph.attention_definitions import ATTENTION
from hfx.exporter.graph.blocks import Activation

DOMAIN, CONTRIB, DISENTANGLED = "hfx", "com.microsoft", "SelfAttentionDisentangled"
SUFFIXES: dict[Activation, str] = {
    "relu": "Relu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "quick_gelu": "QuickGelu",
    "silu": "Silu",
    "tanh": "Tanh",
}
# The expression of each activation of x.
ACTIVATIONS = {
    "Relu": "Relu(x)",
    "Gelu": "com.microsoft.Gelu(x)",
    "GeluTanh": "com.microsoft.FastGelu(x)",
    "QuickGelu": "com.microsoft.QuickGelu <alpha = 1.702> (x)",
    "Silu": "com.microsoft.QuickGelu <alpha = 1.0> (x)",
    "Tanh": "Tanh(x)",
}
OPSET = 21
HEADER = '<domain: "hfx", opset_import: ["" : {opset}, "com.microsoft" : 1]>'.format
SIZES = """
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    rest = Constant <value = int64[1] {-1}> ()
    corner = Constant <value = int64[2] {0, 0}> ()
    width = Constant <value_int: int = @in_features> ()
    columns_of_y = Constant <value_int: int = @out_features> ()
    inputs = Unsqueeze (width, zero)
    outputs = Unsqueeze (columns_of_y, zero)
    packed = Shape (weight)
    groups = Gather (packed, one)
    four = Constant <value = int64[1] {4}> ()
    depth = Mul (groups, four)"""
# Unpacks `panels` to `matrix` [inputs, outputs].
UNPACK = """
    {matrix}_by_input = Transpose <perm = [1, 3, 0, 2]> ({panels})
    {matrix}_padded_shape = Concat <axis = 0> (depth, rest)
    {matrix}_padded = Reshape ({matrix}_by_input, {matrix}_padded_shape)
    {matrix}_ends = Concat <axis = 0> (inputs, outputs)
    {matrix} = Slice ({matrix}_padded, corner, {matrix}_ends)"""
PLAIN = UNPACK.format(matrix="matrix", panels="weight")
GATED = (
    """
    gate_panels, value_panels = Split <axis = 0, num_outputs = 2> (weight)"""
    + UNPACK.format(matrix="gate_matrix", panels="gate_panels")
    + UNPACK.format(matrix="value_matrix", panels="value_panels")
    + """
    matrix = Concat <axis = 1> (gate_matrix, value_matrix)"""
)
SPLIT_SUM = """
    gate, value = Split <axis = -1, num_outputs = 2> (sum)"""
# A row of zeros becomes 0/0, which is an arbitrary u8; its product is multiplied by the row's peak, which is 0.
PRODUCT = """
    magnitude = Abs (x)
    peak = ReduceMax <keepdims = 1> (magnitude, rest)
    shares = Div (x, peak)
    step = Constant <value = float {0.007874015718698502}> ()
    middle = Constant <value = uint8 {128}> ()
    rows = QuantizeLinear (shares, step, middle)
    product = com.microsoft.MatMulIntegerToFloat (rows, matrix, step, scale, middle)
    scaled = Mul (product, peak)
    sum = Add (scaled, bias)"""
# Unpacks int4 `panels` to `bytes` [outputs, blocks, block / 2], MatMulNBits' layout, and `scales` [outputs, blocks].
UNPACK_INT4 = """
    {bytes}_raised = BitwiseXor ({panels}, middle)
    {bytes}_low = BitwiseAnd ({bytes}_raised, fifteen)
    {bytes}_high = BitShift <direction = "RIGHT"> ({bytes}_raised, four)
    {bytes}_lows = Unsqueeze ({bytes}_low, three)
    {bytes}_highs = Unsqueeze ({bytes}_high, three)
    {bytes}_by_group = Concat <axis = 3> ({bytes}_lows, {bytes}_highs)
    {bytes}_by_column = Transpose <perm = [0, 2, 1, 3, 4]> ({bytes}_by_group)
    {bytes}_pairs = Reshape ({bytes}_by_column, pairs)
    {bytes}_even, {bytes}_odd = Split <axis = -1, num_outputs = 2> ({bytes}_pairs)
    {bytes}_shifted = BitShift <direction = "LEFT"> ({bytes}_odd, four)
    {bytes}_joined = BitwiseOr ({bytes}_even, {bytes}_shifted)
    {bytes}_blocks = Reshape ({bytes}_joined, by_block)
    {bytes} = Slice ({bytes}_blocks, corner, ends)
    {scales}_by_column = Transpose <perm = [0, 2, 1]> ({panel_scales})
    {scales}_rows = Reshape ({scales}_by_column, by_panel)
    {scales} = Slice ({scales}_rows, corner, ends)""".format
INT4_SIZES = """
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64[1] {2}> ()
    three = Constant <value = int64[1] {3}> ()
    rest = Constant <value = int64[1] {-1}> ()
    corner = Constant <value = int64[2] {0, 0}> ()
    middle = Constant <value = uint8 {136}> ()
    fifteen = Constant <value = uint8 {15}> ()
    four = Constant <value = uint8 {4}> ()
    width = Constant <value_int: int = @in_features> ()
    columns_of_y = Constant <value_int: int = @out_features> ()
    size = Constant <value_int: int = @block> ()
    inputs = Unsqueeze (width, zero)
    outputs = Unsqueeze (columns_of_y, zero)
    block = Unsqueeze (size, zero)
    pairs_of_block = Div (block, two)
    more_inputs = Add (inputs, block)
    up_to_inputs = Sub (more_inputs, one)
    blocks = Div (up_to_inputs, block)
    ends = Concat <axis = 0> (outputs, blocks)
    padded = Shape <start = 1, end = 2> (scale)
    pairs = Constant <value = int64[2] {-1, 2}> ()
    by_block = Concat <axis = 0> (rest, padded, pairs_of_block)
    by_panel = Concat <axis = 0> (rest, padded)"""
INT4_PRODUCT = """
    {y} = com.microsoft.MatMulNBits <K: int = @in_features, N: int = @out_features, block_size: int = @block, bits = 4,
        accuracy_level = 4> (x, {bytes}, {scales}, , , {bias})""".format
INT4_PLAIN = UNPACK_INT4(bytes="bytes", panels="weight", scales="scales", panel_scales="scale")
INT4_PLAIN += INT4_PRODUCT(y="sum", bytes="bytes", scales="scales", bias="bias")
INT4_GATED = (
    """
    gate_panels, value_panels = Split <axis = 0, num_outputs = 2> (weight)
    gate_scale, value_scale = Split <axis = 0, num_outputs = 2> (scale)
    gate_bias, value_bias = Split <axis = 0, num_outputs = 2> (bias)"""
    + UNPACK_INT4(bytes="gate_bytes", panels="gate_panels", scales="gate_scales", panel_scales="gate_scale")
    + UNPACK_INT4(bytes="value_bytes", panels="value_panels", scales="value_scales", panel_scales="value_scale")
    + INT4_PRODUCT(y="gate", bytes="gate_bytes", scales="gate_scales", bias="gate_bias")
    + INT4_PRODUCT(y="value", bytes="value_bytes", scales="value_scales", bias="value_bias")
)
INT4_ROWS = (
    UNPACK_INT4(bytes="bytes", panels="weight", scales="scales", panel_scales="scale")
    + """
    by_row = Concat <axis = 0> (outputs, rest)
    table = Reshape (bytes, by_row)
    whole = com.microsoft.GatherBlockQuantized <gather_axis = 0, quantize_axis = 1, bits = 4, block_size: int = @block>
        (table, ids, scales)
    y = Slice (whole, zero, inputs, rest)"""
)
BEST = """
    best, next_ids = TopK <axis = -1> (logits, one)"""
ROWS = """
    by_token = Transpose <perm = [0, 2, 1, 3]> (weight)
    padded_shape = Concat <axis = 0> (rest, depth)
    padded = Reshape (by_token, padded_shape)
    ends = Concat <axis = 0> (outputs, inputs)
    table = Slice (padded, corner, ends)
    values = Gather (table, ids)
    floats = Cast <to = 1> (values)
    scales = Gather (scale, ids)
    column = Unsqueeze (scales, rest)
    y = Mul (floats, column)"""

# The operators between the products; the library computes them with the same order of sums on every processor.
FLOATS = {
    "LayerNorm": """<epsilon> (x, weight, bias) => (y) {
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (x, weight, bias)
}""",
    "RmsNorm": """<epsilon> (x, weight) => (y) {
    least = Constant <value_float: float = @epsilon> ()
    last = Constant <value = int64[1] {-1}> ()
    square = Mul (x, x)
    mean = ReduceMean <keepdims = 1> (square, last)
    raised = Add (mean, least)
    root = Sqrt (raised)
    normed = Div (x, root)
    y = Mul (normed, weight)
}""",
    "UnitNorm": """<epsilon> (x) => (y) {
    least = Constant <value_float: float = @epsilon> ()
    last = Constant <value = int64[1] {-1}> ()
    length = ReduceL2 <keepdims = 1> (x, last)
    divisor = Max (length, least)
    y = Div (x, divisor)
}""",
    "FloatLinear": """(x, weight, bias, last) => (y) {
    matrix = Transpose <perm = [1, 0]> (weight)
    product = MatMul (x, matrix)
    y = Add (product, bias)
}""",
    "TokenSum": """(weights, hidden) => (y) {
    one = Constant <value = int64[1] {1}> ()
    row = Unsqueeze (weights, one)
    total = MatMul (row, hidden)
    y = Squeeze (total, one)
}""",
    "LogSoftmax": """(x) => (y) {
    y = LogSoftmax <axis = -1> (x)
}""",
}
FLOATS |= {
    f"FloatLinear{suffix}": FLOATS["FloatLinear"].replace(
        "y = Add (product, bias)", f"sum = Add (product, bias)\n    y = {formula.replace('(x)', '(sum)')}"
    )
    for suffix, formula in (ACTIVATIONS | {"Add": "Add (sum, residual)"}).items()
}
FLOATS["FloatLinearAdd"] = FLOATS["FloatLinearAdd"].replace("bias,", "bias, residual,", 1)
# The same with weights in bfloat16, to which rows are rounded; sums are float32.
ROUNDED = "{ rounded = Cast <to = 16> (x)  rows = Cast <to = 1> (rounded)  floats = Cast <to = 1> (weight)"
FLOATS |= {
    f"Bfloat16{op[5:]}": text.replace("0]> (weight)", "0]> (floats)")
    .replace("(x, m", "(rows, m")
    .replace("{", ROUNDED, 1)
    for op, text in [item for item in FLOATS.items() if item[0].startswith("FloatLinear")]
}
ADAPTERS = adapter_definitions(ACTIVATIONS)
NATIVE_ONLY = ("Int8LowRank", "Int8AdapterLinear")  # no operator of ONNX reads the bytes of floats as int8


@dataclass(frozen=True)
class Products:
    """The parts of a format's definitions, as text.

    `plain` computes the product `sum`, `gated` the `gate` and `value` of a gated product, and `rows` the rows `y` of a
    table.
    """

    attributes: str
    sizes: str
    plain: str
    gated: str
    rows: str


PRODUCTS = {
    "Int8": Products("in_features, out_features", SIZES, PLAIN + PRODUCT, GATED + PRODUCT + SPLIT_SUM, ROWS),
    "Int4": Products("in_features, out_features, block", INT4_SIZES, INT4_PLAIN, INT4_GATED, INT4_ROWS),
}


def function(op: str, opset: int = OPSET) -> onnx.FunctionProto:
    """Return the definition of an operator of hfx/native in ONNX Runtime's own operators, for a model with `opset`."""
    written = FLOATS | ATTENTION | ADAPTERS
    text = op + written[op] if op in written else _linear(op, PRODUCTS[op[:4]], op[4:])
    return onnx.parser.parse_function(f"{HEADER(opset=opset)}\n{text}")


def define(model: onnx.ModelProto) -> None:
    """Add the definitions of the native operators in the graph, and the domains that they need.

    NATIVE_ONLY have no definitions.
    """
    versions = {entry.domain: entry.version for entry in model.opset_import}
    used = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    new = sorted(used - {each.name for each in model.functions})
    model.functions.extend(function(op, versions[""]) for op in new if not op.startswith(NATIVE_ONLY))
    needed = (CONTRIB, DOMAIN) if used else ()
    model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in needed if domain not in versions)


def _linear(op: str, products: Products, form: str) -> str:
    """Return the definition of `op` as text; `form` says whether it computes rows, a head or a linear."""
    inputs, outputs, body = "x, weight, scale, bias, last", "y", products.plain
    if form == "Rows":
        inputs, body = "ids, weight, scale", products.rows
    elif form == "Head":
        inputs, outputs = "x, weight, scale, bias, wants_logits", "logits, next_ids"
        body += f"\n    logits = Identity (sum){BEST}"
    elif form == "HeadOutliers":
        inputs, outputs = "x, weight, scale, bias, wants_logits, outliers, columns", "logits, next_ids"
        body += f"\n    logits = Gemm <transB = 1> (outliers, columns, sum){BEST}"
    elif form == "LinearAdd":
        inputs = "x, weight, scale, bias, residual, last"
        body += "\n    y = Add (sum, residual)"
    elif form.startswith("LinearGated"):
        active = ACTIVATIONS[form.removeprefix("LinearGated")].replace("(x)", "(gate)")
        body = f"{products.gated}\n    active = {active}\n    y = Mul (active, value)"
    else:
        body += "\n    y = " + ACTIVATIONS.get(form.removeprefix("Linear"), "Identity(x)").replace("(x)", "(sum)")
    return f"{op} <{products.attributes}> ({inputs}) => ({outputs}) {{{products.sizes}{body}\n}}"
