"""The definitions of the native attentions as ONNX functions (operators.py). Those with float16 caches have none."""

from __future__ import annotations

from functools import partial

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
# The operator always appends a key and a value. Here they are the key and value of the last source position, which the
# cache holds at that place already, so that the write changes nothing. The beams of a head are the group of query heads
# that share the head's K and V. int8 K and V are in steps of their request's scales (SourceMemoryWriter). Queries and
# results are multiplied by these scales; the operator's own scale is 1.
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
    zero = Constant <value = int64[1] {{0}}> ()
    rest = Constant <value = int64[1] {{-1}}> ()
    heads_0 = Constant <value_int: int = @heads> ()
    heads_1 = Unsqueeze (heads_0, zero)
    by_head = Concat <axis = 0> (zero, zero, heads_1, rest){queries}
    split_keys = Reshape (keys, by_head)
    split_values = Reshape (values, by_head)
    q = Transpose <perm = [0, 2, 1, 3]> (split_queries)
    v = Transpose <perm = [0, 2, 1, 3]> (split_values)""".format
SPLIT_JOINED = """
    queries, keys, values = Split <axis = -1, num_outputs = 3> (qkv)
    split_queries = Reshape (queries, by_head)"""
SPLIT_FIRST = """
    one = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64[1] {2}> ()
    first_mask = Slice (mask, zero, one, two)
    query = Unsqueeze (queries, one)
    keys, values = Split <axis = -1, num_outputs = 2> (kv)
    split_queries = Reshape (query, by_head)"""
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
# Makes [rows, heads, width, width] of [rows, heads, width, 2 * width]: row i has `width` columns from width - 1 - i on.
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
    masked = Add (scaled, {mask}){add_bias}
    weights = Softmax <axis = -1> ({scores})
    mixed = MatMul (weights, v)
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    {y} = Reshape (turned, by_token)"""
AS_JOINED = {"front": SPLIT(queries=SPLIT_JOINED) + PLAIN_KEYS, "q": "q", "add_positions": "", "sums": "products"}
AS_JOINED |= {"mask": "mask", "add_bias": "", "scores": "masked", "y": "y"}
OF_FIRST = {"front": SPLIT(queries=SPLIT_FIRST) + PLAIN_KEYS, "mask": "first_mask", "y": "of_one_token"}
PLAIN_SELF = SELF.format(**AS_JOINED)
BIASED_SELF = SELF.format(**AS_JOINED | {"add_bias": ADD_BIAS, "scores": "biased"})
ROTARY_SELF = SELF.format(**AS_JOINED | {"front": SPLIT(queries=SPLIT_JOINED) + ROTATED_KEYS, "q": "rotated_q"})
DISENTANGLED_SELF = SELF.format(**AS_JOINED | {"add_positions": BY_POSITION, "sums": "sums"})
SELF_OF_FIRST = SELF.format(**AS_JOINED | OF_FIRST) + "\n    y = Squeeze (of_one_token, one)"
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
    "SelfAttentionFirst": f"<heads, scale> (queries, kv, mask, last) => (y) {{{SELF_OF_FIRST}\n}}",
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
