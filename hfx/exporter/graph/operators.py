"""The operators of hfx/native, each with its definition as an ONNX function, and the layout of their weights.

A node of the domain "hfx" is run by the native library where a session has it (python_backends/engine/sessions.py).
Anywhere else ONNX Runtime puts the function in its place when the session is made, and unpacks the weights then: one
file for both. Only the attention to caches in float16 has no definition, since it is written to files for native
operators alone (CachedAttentionFloat16, CachedAttentionRotaryFloat16).

int8 quantizes each row of the activations by its own peak, so that a row's result is the same, to the bit, in any
batch; onnxruntime's DynamicQuantizeMatMul has one scale for all rows of a batch.

The last input of a linear and of a SelfAttention is optional: `last`, [texts] int32, the last token of each text. The
library computes nothing for the padding behind it, and writes zeros; the definitions don't read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Activation, FloatArray, Parameter
from hfx.exporter.quantize.generator import int8_rows

DOMAIN, DISENTANGLED = "hfx", "SelfAttentionDisentangled"
COLUMNS, GROUP, DEPTH = 64, 4, 64  # of a panel; weights of a column side by side; what inputs are padded to
PANELS_A_PIECE = 64
SUFFIXES: dict[Activation, str] = {
    "relu": "Relu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "quick_gelu": "QuickGelu",
    "silu": "Silu",
}
# y of x, for each activation.
ACTIVATIONS = {
    "Relu": "Relu(x)",
    "Gelu": "com.microsoft.Gelu(x)",
    "GeluTanh": "com.microsoft.FastGelu(x)",
    "QuickGelu": "com.microsoft.QuickGelu <alpha = 1.702> (x)",
    "Silu": "com.microsoft.QuickGelu <alpha = 1.0> (x)",
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
# `matrix` [inputs, outputs] of `panels`.
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
# A row of zeros becomes 0/0, which is some u8; its product is multiplied by its peak, 0, again.
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


OF_TOKENS = """
    split = Reshape (qkv, lead)
    {outputs} = com.microsoft.GroupQueryAttention <num_heads: int = @heads,
        kv_num_heads: int = @heads, do_rotary = 0, causal = {causal}, scale: float = @scale> ({inputs})
    width = Shape <start = 2, end = 3> (attended)
    rest = Constant <value = int64[1] {{-1}}> ()
    flat = Concat <axis = 0> (rest, width)
    y = Reshape (attended, flat)"""
CACHED = partial(OF_TOKENS.format, outputs="attended, present_k, present_v", causal=1)
SOURCE = partial(OF_TOKENS.format, outputs="attended", causal=0)
# The operator always appends a key and a value. It is given those of the last source position, which stand in the cache
# at that place already, so that the write changes nothing. The beams of a head are the group of query heads that share
# the head's K and V. K and V in int8 are in steps of their request's scales (SourceMemoryWriter), by which queries and
# results are multiplied; the operator's own scale is 1.
CROSS = """
    zero = Constant <value = int64[1] {{0}}> ()
    one = Constant <value = int64[1] {{1}}> ()
    rest = Constant <value = int64[1] {{-1}}> ()
    heads_0 = Constant <value_int: int = @heads> ()
    beams_0 = Constant <value_int: int = @beams> ()
    dim_0 = Constant <value_int: int = @head_dim> ()
    heads_1 = Unsqueeze (heads_0, zero)
    beams_1 = Unsqueeze (beams_0, zero)
    dim_1 = Unsqueeze (dim_0, zero)
    by_beam_shape = Concat <axis = 0> (rest, beams_1, heads_1, dim_1)
    by_head_shape = Concat <axis = 0> (rest, heads_1, beams_1, dim_1)
    one_token_shape = Concat <axis = 0> (zero, one, rest)
    flat_0 = Mul (heads_1, dim_1)
    flat = Concat <axis = 0> (rest, flat_0)
    by_beam = Reshape (query, by_beam_shape)
    by_head = Transpose <perm = [0, 2, 1, 3]> (by_beam){scale_queries}
    grouped = Reshape ({queries}, one_token_shape)
    attended, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads: int = @query_heads,
        kv_num_heads: int = @heads, do_rotary = 0, scale: float = @scale{attributes}>
        (grouped, k_last, v_last, past_k, past_v, last, total{inputs})
    attended_by_head = Reshape (attended, by_head_shape){scale_results}
    attended_by_beam = Transpose <perm = [0, 2, 1, 3]> ({results})
    y = Reshape (attended_by_beam, flat)"""
PLAIN_CROSS = CROSS.format(
    scale_queries="", queries="by_head", attributes="", inputs="", scale_results="", results="attended_by_head"
)
INT8_CROSS = CROSS.format(
    scale_queries="""
    step = Constant <value = float[1] {1.0}> ()
    scale_shape = Concat <axis = 0> (rest, heads_1, one, dim_1)
    k_scales = Reshape (k_scale, scale_shape)
    scaled_queries = Mul (by_head, k_scales)""",
    queries="scaled_queries",
    attributes=', k_quant_type = "PER_TENSOR", v_quant_type = "PER_TENSOR", kv_cache_bit_width = 8',
    inputs=", , , , , , step, step",
    scale_results="""
    v_scales = Reshape (v_scale, scale_shape)
    scaled_results = Mul (attended_by_head, v_scales)""",
    results="scaled_results",
)
SPLIT = """
    zero = Constant <value = int64[1] {0}> ()
    rest = Constant <value = int64[1] {-1}> ()
    heads_0 = Constant <value_int: int = @heads> ()
    heads_1 = Unsqueeze (heads_0, zero)
    by_head = Concat <axis = 0> (zero, zero, heads_1, rest)
    queries, keys, values = Split <axis = -1, num_outputs = 3> (qkv)
    split_queries = Reshape (queries, by_head)
    split_keys = Reshape (keys, by_head)
    split_values = Reshape (values, by_head)
    q = Transpose <perm = [0, 2, 1, 3]> (split_queries)
    v = Transpose <perm = [0, 2, 1, 3]> (split_values)"""
PLAIN_KEYS = """
    turned_keys = Transpose <perm = [0, 2, 3, 1]> (split_keys)"""
KEYS_BY_HEAD = """
    turned_keys = Transpose <perm = [0, 1, 3, 2]> ({k})""".format
ROTATE = """
    low_{x}, high_{x} = Split <axis = -1, num_outputs = 2> ({x})
    negative_{x} = Neg (high_{x})
    halves_{x} = Concat <axis = -1> (negative_{x}, low_{x})
    of_cos_{x} = Mul ({x}, cos)
    of_sin_{x} = Mul (halves_{x}, sin)
    rotated_{x} = Add (of_cos_{x}, of_sin_{x})""".format
ROTATED_KEYS = f"""
    k = Transpose <perm = [0, 2, 1, 3]> (split_keys){ROTATE(x="q")}{ROTATE(x="k")}{KEYS_BY_HEAD(k="rotated_k")}"""
ADD_BIAS = """
    biased = Add (masked, bias)"""
# [rows, heads, width, width] of [rows, heads, width, 2 * width]: of row i, `width` columns from width - 1 - i on.
SKEW = """
    flat_{x} = Reshape ({x}, flat)
    from_first_{x} = Slice (flat_{x}, before, end, two)
    rows_{x} = Reshape (from_first_{x}, less_one)
    skewed_{x} = Slice (rows_{x}, zero, width, three)""".format
BY_POSITION = f"""
    one = Constant <value = int64[1] {{1}}> ()
    two = Constant <value = int64[1] {{2}}> ()
    three = Constant <value = int64[1] {{3}}> ()
    flat = Constant <value = int64[3] {{0, 0, -1}}> ()
    width = Shape <start = 1, end = 2> (qkv)
    twice = Mul (width, two)
    before = Sub (width, one)
    odd = Sub (twice, one)
    count = Mul (width, odd)
    end = Add (before, count)
    less_one = Concat <axis = 0> (zero, zero, width, odd)
    first = Constant <value = int64[1] {{-9223372036854775807}}> ()
    last_but_one = Constant <value = int64[1] {{-2}}> ()
    from_behind = Slice (buckets, last_but_one, first, zero, rest)
    unread = Slice (buckets, odd, twice, zero)
    of_queries = Concat <axis = 0> (from_behind, unread)
    k = Transpose <perm = [0, 2, 1, 3]> (split_keys)
    keys_by_distance = Gather <axis = 2> (position_keys, buckets)
    queries_by_distance = Gather <axis = 2> (position_queries, of_queries)
    by_query = MatMul (q, keys_by_distance)
    by_key = MatMul (k, queries_by_distance){SKEW(x="by_query")}{SKEW(x="by_key")}
    turned_by_key = Transpose <perm = [0, 1, 3, 2]> (skewed_by_key)
    by_position = Add (skewed_by_query, turned_by_key)
    sums = Add (products, by_position)"""
SELF = """{front}
    by_token = Constant <value = int64[3] {{0, 0, -1}}> ()
    products = MatMul ({q}, turned_keys){add_positions}
    factor = Constant <value_float: float = @scale> ()
    scaled = Mul ({sums}, factor)
    masked = Add (scaled, mask){add_bias}
    weights = Softmax <axis = -1> ({scores})
    mixed = MatMul (weights, v)
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    y = Reshape (turned, by_token)"""
AS_JOINED = {"front": SPLIT + PLAIN_KEYS, "q": "q", "add_positions": "", "sums": "products"}
AS_JOINED |= {"add_bias": "", "scores": "masked"}
PLAIN_SELF = SELF.format(**AS_JOINED)
BIASED_SELF = SELF.format(**AS_JOINED | {"add_bias": ADD_BIAS, "scores": "biased"})
ROTARY_SELF = SELF.format(**AS_JOINED | {"front": SPLIT + ROTATED_KEYS, "q": "rotated_q"})
DISENTANGLED_SELF = SELF.format(**AS_JOINED | {"add_positions": BY_POSITION, "sums": "sums"})
SELF_BY_HEAD = SELF.format(**AS_JOINED | {"front": KEYS_BY_HEAD(k="k")})
OF_CACHES = "(y, present_k, present_v)"
ATTENTION = {
    "SelfAttention": f"<heads, scale> (qkv, mask, last) => (y) {{{PLAIN_SELF}\n}}",
    "SelfAttentionBias": f"<heads, scale> (qkv, mask, bias, last) => (y) {{{BIASED_SELF}\n}}",
    "SelfAttentionRotary": f"<heads, scale> (qkv, mask, cos, sin, last) => (y) {{{ROTARY_SELF}\n}}",
    "SelfAttentionDisentangled": f"""<heads, scale>
    (qkv, mask, buckets, position_keys, position_queries, last) => (y) {{
    {DISENTANGLED_SELF}
}}""",
    "SelfAttentionHeads": f"<heads, scale> (q, k, v, mask, last) => (y) {{{SELF_BY_HEAD}\n}}",
    "CachedAttention": f"""<heads, scale> (qkv, past_k, past_v, last, total, lead) => {OF_CACHES} {{
    {CACHED(inputs="split, , , past_k, past_v, last, total")}
}}""",
    "CachedAttentionBias": f"""<heads, scale> (qkv, past_k, past_v, last, total, lead, bias) => {OF_CACHES} {{
    {CACHED(inputs="split, , , past_k, past_v, last, total, , , , bias")}
}}""",
    "SourceAttention": f"""<heads, scale> (qkv, last, total, lead) => (y) {{
    {SOURCE(inputs="split, , , , , last, total")}
}}""",
    "SourceAttentionBias": f"""<heads, scale> (qkv, last, total, lead, bias) => (y) {{
    {SOURCE(inputs="split, , , , , last, total, , , , bias")}
}}""",
    "CrossAttention": f"""<heads, query_heads, head_dim, beams, scale>
    (query, past_k, past_v, last, k_last, v_last, total) => {OF_CACHES} {{
    {PLAIN_CROSS}
}}""",
    "CrossAttentionInt8": f"""<heads, query_heads, head_dim, beams, scale>
    (query, past_k, past_v, last, k_scale, v_scale, k_last, v_last, total) => {OF_CACHES} {{
    {INT8_CROSS}
}}""",
}


def function(op: str, opset: int = OPSET) -> onnx.FunctionProto:
    """The definition of an operator of hfx/native in those that every ONNX Runtime has, for a model of that opset."""
    attributes = "<in_features, out_features>"
    if op in ATTENTION:
        text = op + ATTENTION[op]
    elif op == "Int8Rows":
        text = f"{op} {attributes} (ids, weight, scale) => (y) {{{SIZES}{ROWS}\n}}"
    elif op == "Int8Head":
        text = f"(x, weight, scale, bias, wants_logits) => (logits, next_ids) {{{SIZES}{PLAIN}{PRODUCT}"
        text = f"{op} {attributes} {text}\n    logits = Identity (sum){BEST}\n}}"
    elif op == "Int8HeadOutliers":
        text = (
            f"(x, weight, scale, bias, wants_logits, outliers, columns) => (logits, next_ids) {{{SIZES}{PLAIN}{PRODUCT}"
        )
        text = f"{op} {attributes} {text}\n    logits = Gemm <transB = 1> (outliers, columns, sum){BEST}\n}}"
    elif op == "Int8LinearAdd":
        text = f"{op} {attributes} (x, weight, scale, bias, residual, last) => (y) {{{SIZES}{PLAIN}{PRODUCT}"
        text += "\n    y = Add (sum, residual)\n}"
    else:
        text = f"(x, weight, scale, bias, last) => (y) {{{SIZES}{_linear(op.removeprefix('Int8Linear'))}\n}}"
        text = f"{op} {attributes} {text}"
    return onnx.parser.parse_function(f"{HEADER(opset=opset)}\n{text}")


def _linear(form: str) -> str:
    gated = form.startswith("Gated")
    applied = ACTIVATIONS.get(form.removeprefix("Gated"), "Identity(x)")
    if not gated:
        return f"{PLAIN}{PRODUCT}\n    y = {applied.replace('(x)', '(sum)')}"
    split = "gate, value = Split <axis = -1, num_outputs = 2> (sum)"
    return (
        f"{GATED}{PRODUCT}\n    {split}\n    active = {applied.replace('(x)', '(gate)')}\n    y = Mul (active, value)"
    )


def packed_shape(weight: Parameter, halves: int = 1) -> tuple[int, int, int, int]:
    """[panels, depth / 4, 64, 4]: the shape of `weight` [outputs, inputs] in panels; each half has its own."""
    outputs, inputs = weight.shape
    return halves * -(-outputs // halves // COLUMNS), -(-inputs // DEPTH) * DEPTH // GROUP, COLUMNS, GROUP


def packed(weight: Parameter, levels: int, halves: int = 1) -> Iterator[tuple[NDArray[np.int8], FloatArray]]:
    """int8 of `weight` in panels, some at a time, and the scale of each output."""
    outputs = weight.shape[0] // halves
    for half in range(halves):
        for start in range(0, outputs, PANELS_A_PIECE * COLUMNS):
            stop = min(start + PANELS_A_PIECE * COLUMNS, outputs)
            values, scale = int8_rows(weight.take(half * outputs + start, half * outputs + stop), levels)
            yield panels_of(values), scale


def panels_of(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """`values` [outputs, inputs] as [panels, depth / 4, 64, 4], with zeros behind the last output and input."""
    (outputs, inputs), depth = values.shape, -(-values.shape[1] // DEPTH) * DEPTH
    padded = np.zeros((-(-outputs // COLUMNS) * COLUMNS, depth), np.int8)
    padded[:outputs, :inputs] = values
    return padded.reshape(-1, COLUMNS, depth // GROUP, GROUP).transpose(0, 2, 1, 3)
