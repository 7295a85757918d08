"""The definitions of the native operators for adapters as ONNX functions (operators.py).

Each row of x names its adapter, or one adapter is for all rows. `pool` [slots, stride] has the weights of all adapters;
those of one operator begin at `offset` in each slot.

A `LowRank` operator adds the product of an adapter's matrices A and B to `base`, and may apply an activation then. Its
columns are up to three parts with matrices of their own, of at most `rank0`, `rank1` and `rank2` rows. A part with the
rank 0 has no adapters and no place in a slot. The weights of a part are a header of 16 numbers, of which the first is
the adapter's rank, then A [rank, in_features] and B [rank, columns], with zeros behind the adapter's rank. The
definition doesn't read the header: it multiplies by the zeros too.

An `AdapterLinear` is a linear whose slot has the weights [out_features, in_features] and then the biases.

`Int8LowRank` and `Int8AdapterLinear` have the same inputs and attributes, and int8 weights with a float32 scale for
each row of a matrix. Four int8 lie in the place of a float, their bytes in order, and zeros fill the last float of a
matrix. A part of an `Int8LowRank` is the header, then `rank` scales, each the product of the scales of a row of A and
of a row of B, then A and B. The slot of an `Int8AdapterLinear` has out_features scales, the biases, and then the
weights. The activations stay float32. These operators have no definition, since no operator of ONNX reads the bytes of
floats as int8.

The definitions pass shapes of any size to Reshape as they are (allowzero), since a part may have no columns or no rank.
A negative adapter is refused by the library only.
"""

from __future__ import annotations

from collections.abc import Mapping

# Gathers the numbers of each adapter and makes x [rows, tokens, in_features]. `length` is the numbers of a slot to
# gather, and the `sizes` are their parts.
GATHERED = """
    place = Constant <value_int: int = @offset> ()
    begin = Unsqueeze (place, zero)
    end = Add (begin, length)
    of_slots = Slice (pool, begin, end, one)
    of_rows = Gather <axis = 0> (of_slots, adapter)
    {parts} = Split <axis = 1> (of_rows, sizes)
    adapters = Shape (adapter)
    rows = Shape <start = 0, end = 1> (x)
    between = Shape <start = 1, end = -1> (x)
    at_least_one = Concat <axis = 0> (one, between)
    tokens = ReduceProd <keepdims = 1> (at_least_one)
    by_row = Concat <axis = 0> (rows, tokens, inputs)
    x_by_row = Reshape <allowzero = 1> (x, by_row)""".format
CONSTANTS = """
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    width = Constant <value_int: int = @in_features> ()
    inputs = Unsqueeze (width, zero)"""
SIZE_OF_PART = """
    rank_{i} = Constant <value_int: int = @rank{i}> ()
    columns_{i} = Constant <value_int: int = @columns{i}> ()
    room_{i} = Unsqueeze (rank_{i}, zero)
    outputs_{i} = Unsqueeze (columns_{i}, zero)
    has_header_{i} = Min (room_{i}, one)
    header_size_{i} = Mul (has_header_{i}, header)
    a_size_{i} = Mul (room_{i}, inputs)
    b_size_{i} = Mul (room_{i}, outputs_{i})""".format
# A and B get another row, of zeros, so that a part without a rank is a sum of zeros and not of nothing.
PART = """
    a_shape_{i} = Concat <axis = 0> (adapters, room_{i}, inputs)
    b_shape_{i} = Concat <axis = 0> (adapters, room_{i}, outputs_{i})
    a_rows_{i} = Reshape <allowzero = 1> (a_numbers_{i}, a_shape_{i})
    b_rows_{i} = Reshape <allowzero = 1> (b_numbers_{i}, b_shape_{i})
    a_{i} = Pad (a_rows_{i}, row_of_zeros)
    b_{i} = Pad (b_rows_{i}, row_of_zeros)
    turned_{i} = Transpose <perm = [0, 2, 1]> (a_{i})
    low_{i} = MatMul (x_by_row, turned_{i})
    delta_{i} = MatMul (low_{i}, b_{i})""".format
PARTS = range(3)
LOW_RANK = "".join(
    [
        CONSTANTS,
        "\n    header = Constant <value = int64[1] {16}> ()",
        *(SIZE_OF_PART(i=i) for i in PARTS),
        f"""
    sizes = Concat <axis = 0> ({", ".join(f"header_size_{i}, a_size_{i}, b_size_{i}" for i in PARTS)})
    length = ReduceSum <keepdims = 1> (sizes)""",
        GATHERED(parts=", ".join(f"header_{i}, a_numbers_{i}, b_numbers_{i}" for i in PARTS)),
        "\n    row_of_zeros = Constant <value = int64[6] {0, 0, 0, 0, 1, 0}> ()",
        *(PART(i=i) for i in PARTS),
        """
    delta_by_row = Concat <axis = 2> (delta_0, delta_1, delta_2)
    shape_of_base = Shape (base)
    delta = Reshape <allowzero = 1> (delta_by_row, shape_of_base)""",
    ]
)
ATTRIBUTES_OF_PARTS = "in_features, offset, columns0, columns1, columns2, rank0, rank1, rank2"
ADAPTER_LINEAR = f"""{CONSTANTS}
    columns = Constant <value_int: int = @out_features> ()
    outputs = Unsqueeze (columns, zero)
    weights_size = Mul (outputs, inputs)
    sizes = Concat <axis = 0> (weights_size, outputs)
    length = ReduceSum <keepdims = 1> (sizes){GATHERED(parts="weight_numbers, biases")}
    weight_shape = Concat <axis = 0> (adapters, outputs, inputs)
    weight = Reshape <allowzero = 1> (weight_numbers, weight_shape)
    matrix = Transpose <perm = [0, 2, 1]> (weight)
    product = MatMul (x_by_row, matrix)
    bias = Unsqueeze (biases, one)
    sum_by_row = Add (product, bias)
    front = Shape <end = -1> (x)
    shape_of_y = Concat <axis = 0> (front, outputs)
    sum = Reshape <allowzero = 1> (sum_by_row, shape_of_y)"""


def adapter_definitions(activations: Mapping[str, str]) -> dict[str, str]:
    """Return the definitions by operator, for activations that are expressions of x by suffix."""
    low_rank = f"<{ATTRIBUTES_OF_PARTS}> (x, base, adapter, pool, last) => (y) {{{LOW_RANK}\n    "
    added = low_rank.replace("base, adapter", "base, residual, adapter")
    linear = f"<in_features, out_features, offset> (x, adapter, pool) => (y) {{{ADAPTER_LINEAR}\n    "
    made = {
        "LowRank": low_rank + "y = Add (base, delta)\n}",
        "LowRankAdd": added + "joined = Add (base, residual)\n    y = Add (joined, delta)\n}",
        "AdapterLinear": linear + "y = Identity (sum)\n}",
    }
    for suffix, formula in activations.items():
        active = f"y = {formula.replace('(x)', '(sum)')}\n}}"
        made[f"LowRank{suffix}"] = f"{low_rank}sum = Add (base, delta)\n    {active}"
        made[f"AdapterLinear{suffix}"] = linear + active
    return made
