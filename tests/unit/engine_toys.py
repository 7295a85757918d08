"""Engine folders whose next token a reader can work out with a pencil, in the graph inputs and outputs of real ones.

Two layers of two heads attend to the keys and values that the engine keeps. What comes next is
    target = (1 * sum(token * (1 + position % 3)) + 3 * first token
              + 5 * sum(token * (1 + position % 2)) + 7 * last token + 1) % VOCABULARY
over all that was fed so far (an encoder-decoder adds the same of its source, times 11, 13, 17 and 19). The logits are
the row TABLE[target], whose largest entry is at `target`. Each of the four terms comes from another head or layer,
found through keys or summed over values, so that a K/V entry at a wrong place changes tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 29
LAYERS, HEADS, HEAD_DIM = 2, 2, 8
HIDDEN = HEADS * HEAD_DIM
MAX_LENGTH, MAX_SOURCE = 64, 48
BEAMS = (1, 2, 3, 4)
FAILS_ON = VOCABULARY - 1  # the token that a model made with fails=True refuses

MICROSOFT = "com.microsoft"
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def _table() -> np.ndarray:
    values = np.random.default_rng(7).uniform(0, 1.5, (VOCABULARY, VOCABULARY)).astype(np.float32)
    np.fill_diagonal(values, 2.0)
    return values


TABLE = _table()


def mixed(tokens: Sequence[int]) -> tuple[int, int, int, int]:
    """The four terms of `target` without their factors."""
    thirds = sum(token * (1 + at % 3) for at, token in enumerate(tokens))
    halves = sum(token * (1 + at % 2) for at, token in enumerate(tokens))
    return thirds, tokens[0], halves, tokens[-1]


def target(fed: Sequence[int], source: Sequence[int] = ()) -> int:
    """The token that the models rank first after the decoder was fed `fed`."""
    total = sum(factor * term for factor, term in zip((1, 3, 5, 7), mixed(fed), strict=True)) + 1
    if source:
        total += sum(factor * term for factor, term in zip((11, 13, 17, 19), mixed(source), strict=True))
    return total % VOCABULARY


def logits(fed: Sequence[int], source: Sequence[int] = ()) -> np.ndarray:
    """[VOCABULARY] float32: the models' logits after `fed`."""
    return TABLE[target(fed, source)]


def greedy(fed: Sequence[int], count: int, source: Sequence[int] = (), eos: Sequence[int] = ()) -> tuple[int, ...]:
    """What plain greedy decoding generates: at most `count` tokens, the first of `eos` included."""
    tokens = list(fed)
    for _ in range(count):
        tokens.append(target(tokens, source))
        if tokens[-1] in eos:
            break
    return tuple(tokens[len(fed) :])


class Graph:
    """Nodes in order of being asked for; `op` returns the name of the node's first output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def input(self, name: str, kind: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, kind: int, *shape: int | str) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def op(self, kind: str, *inputs: str, out: Sequence[str] = (), domain: str = "", **attributes: Any) -> str:
        names = list(out) or [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0]

    def floats(self, x: str) -> str:
        return self.op("Cast", x, to=FLOAT)

    def save(self, path: Path) -> None:
        graph = helper.make_graph(self.nodes, "toy", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def _features(g: Graph, tokens: str, positions: str) -> str:
    """[rows, width, 5]: one, the token, its position, the token times each of the two weights of its position."""
    cycles = [g.op("Mod", positions, g.const(size)) for size in (3, 2)]
    weighted = [g.op("Mul", tokens, g.floats(g.op("Add", cycle, g.const(1)))) for cycle in cycles]
    one = g.op("Add", g.op("Mul", tokens, g.const(0, np.float32)), g.const(1, np.float32))
    columns = [one, tokens, g.floats(positions), *weighted]
    return g.op("Concat", *(g.op("Unsqueeze", column, g.const([-1])) for column in columns), axis=-1)


def _key_value_weights(layer: int) -> np.ndarray:
    """[5, 2 * HIDDEN]: features to K | V. Head 0's value is a weighted token, head 1's a token found by its key."""
    weights = np.zeros((5, 2 * HIDDEN), np.float32)
    weights[2, HEAD_DIM] = -20 if layer == 0 else 20  # head 1 finds the first or the last position
    weights[3 + layer, HIDDEN + 3] = 1
    weights[1, HIDDEN + HEAD_DIM + 5] = 1
    return weights


def _query_weights() -> np.ndarray:
    weights = np.zeros((5, HIDDEN), np.float32)
    weights[0, HEAD_DIM] = 1
    return weights


def _terms(g: Graph, attended: str, length: str) -> tuple[str, str]:
    """Of attended [rows, HIDDEN] and length [rows]: the weighted sum over positions, and the token that keys found."""
    mean = g.op("Gather", attended, g.const(3), axis=1)
    return g.op("Mul", mean, length), g.op("Gather", attended, g.const(HEAD_DIM + 5), axis=1)


def _head(g: Graph, terms: Sequence[str]) -> None:
    """Terms [rows] float, in the order of the module's formula -> logits and next_ids."""
    total = g.const(1)
    for factor, term in zip((1, 3, 5, 7, 11, 13, 17, 19), terms, strict=False):
        whole = g.op("Cast", g.op("Floor", g.op("Add", term, g.const(0.5, np.float32))), to=INT64)
        total = g.op("Add", total, g.op("Mul", whole, g.const(factor)))
    chosen = g.op("Mod", total, g.const(VOCABULARY))
    g.op("Gather", g.const(TABLE, np.float32), chosen, out=[g.output("logits", FLOAT, "rows", VOCABULARY)])
    g.op("ArgMax", "logits", out=[g.output("next_ids", INT64, "rows", 1)], axis=-1, keepdims=1)


def _tokens(g: Graph, fails: bool) -> str:
    """input_ids as floats, looked up in a table that lacks FAILS_ON where the model shall fail on it."""
    known = VOCABULARY - 1 if fails else VOCABULARY
    return g.op("Gather", g.const(np.arange(known), np.float32), "input_ids")


def _cache(g: Graph, prefix: tuple[str, str], layer: int, rows: str, capacity: str) -> tuple[list[str], list[str]]:
    past = [g.input(f"{prefix[0]}{t}_{layer}", FLOAT, rows, HEADS, capacity, HEAD_DIM) for t in "kv"]
    present = [g.output(f"{prefix[1]}{t}_{layer}", FLOAT, rows, HEADS, capacity, HEAD_DIM) for t in "kv"]
    return past, present


def _self_attention(g: Graph, features: str, layer: int) -> str:
    past, present = _cache(g, ("past_", "present_"), layer, "rows", "capacity")
    weights = np.concatenate([_query_weights(), _key_value_weights(layer)], axis=1)
    packed = g.op("MatMul", features, g.const(weights, np.float32))
    inputs = (packed, "", "", *past, "seqlens_k", "total_length")
    attributes = {"num_heads": HEADS, "kv_num_heads": HEADS, "do_rotary": 0, "scale": 1.0}
    return g.op("GroupQueryAttention", *inputs, out=[f"self_{layer}", *present], domain=MICROSOFT, **attributes)


def _length(g: Graph, seqlens: str) -> str:
    return g.floats(g.op("Add", seqlens, g.const(1, np.int32)))


def _decoder_inputs(g: Graph, width: int | str) -> None:
    g.input("input_ids", INT64, "rows", width)
    g.input("position_ids", INT64, "rows", width)
    g.input("seqlens_k", INT32, "rows")
    g.input("total_length", INT32)


def _save_decoder(path: Path, fails: bool) -> None:
    g = Graph()
    _decoder_inputs(g, "sequence")
    g.input("last_index", INT64, "rows", 1)
    features = _features(g, _tokens(g, fails), "position_ids")
    length = _length(g, "seqlens_k")
    terms: list[str] = []
    for layer in range(LAYERS):
        attended = _self_attention(g, features, layer)
        terms += _terms(g, g.op("GatherND", attended, "last_index", batch_dims=1), length)
    _head(g, terms)
    g.save(path)


def _cross_attention(g: Graph, layer: int, beams: int) -> str:
    """[rows, HIDDEN]; the beams of a request are query heads that share its keys."""
    past, present = _cache(g, ("cross_", "cross_present_"), layer, "requests", "source_capacity")
    last = [g.input(f"cross_{t}_last_{layer}", FLOAT, "requests", 1, HIDDEN) for t in "kv"]
    query = np.zeros((HEADS, beams, HEAD_DIM), np.float32)
    query[1, :, 0] = 1
    requests = g.op("Shape", "source_seqlens_k")
    shape = g.op("Concat", requests, g.const([1, query.size]), axis=0)
    packed = g.op("Expand", g.const(query.reshape(1, 1, -1), np.float32), shape)
    inputs = (packed, *last, *past, "source_seqlens_k", "source_total_length")
    attributes = {"num_heads": HEADS * beams, "kv_num_heads": HEADS, "do_rotary": 0, "scale": 1.0}
    out = g.op("GroupQueryAttention", *inputs, out=[f"across_{layer}", *present], domain=MICROSOFT, **attributes)
    by_beam = g.op("Transpose", g.op("Reshape", out, g.const([-1, HEADS, beams, HEAD_DIM])), perm=[0, 2, 1, 3])
    return g.op("Reshape", by_beam, g.const([-1, HIDDEN]))


def _save_beam_decoder(path: Path, beams: int, fails: bool) -> None:
    g = Graph()
    _decoder_inputs(g, 1)
    g.input("source_seqlens_k", INT32, "requests")
    g.input("source_total_length", INT32)
    features = _features(g, _tokens(g, fails), "position_ids")
    own, across = _length(g, "seqlens_k"), _length(g, "source_seqlens_k")
    each_row = g.op("Mul", g.op("Unsqueeze", across, g.const([1])), g.const(np.ones((1, beams)), np.float32))
    across = g.op("Reshape", each_row, g.const([-1]))
    terms, source_terms = [], []
    for layer in range(LAYERS):
        attended = g.op("Reshape", _self_attention(g, features, layer), g.const([-1, HIDDEN]))
        terms += _terms(g, attended, own)
        source_terms += _terms(g, _cross_attention(g, layer, beams), across)
    _head(g, [*terms, *source_terms])
    g.save(path)


def _save_encoder(path: Path, fails: bool) -> None:
    """The keys and values depend on each source token alone; lengths are not needed, but are taken as real ones do."""
    g = Graph()
    g.input("input_ids", INT64, "requests", "source")
    g.input("seqlens_k", INT32, "requests")
    g.input("total_length", INT32)
    tokens = _tokens(g, fails)
    width = g.op("Cast", "total_length", to=INT64)
    positions = g.op("Range", g.const(0), width, g.const(1))
    positions = g.op("Expand", g.op("Unsqueeze", positions, g.const([0])), g.op("Shape", "input_ids"))
    # A source beyond its length is NaN, so that a padded position that is read is seen.
    lengths = g.op("Unsqueeze", g.op("Cast", "seqlens_k", to=INT64), g.const([1]))
    padded = g.op("Greater", positions, lengths)
    tokens = g.op("Where", padded, g.const(np.nan, np.float32), tokens)
    features = _features(g, tokens, positions)
    for layer in range(LAYERS):
        name = g.output(f"cross_{layer}", FLOAT, "requests", "source", 2 * HIDDEN)
        g.op("MatMul", features, g.const(_key_value_weights(layer), np.float32), out=[name])
    g.save(path)


def _save_heads(folder: Path) -> None:
    g = Graph()
    g.input("scores", FLOAT, "rows", "vocab")
    g.op("LogSoftmax", "scores", out=[g.output("log_probs", FLOAT, "rows", "vocab")], axis=-1)
    g.save(folder / "log_softmax.onnx")
    g = Graph()
    g.input("scores", FLOAT, "rows", "vocab")
    g.input("k", INT64, 1)
    out = [g.output("values", FLOAT, "rows", "k"), g.output("ids", INT64, "rows", "k")]
    g.op("TopK", "scores", "k", out=out, axis=-1)
    g.save(folder / "top_k.onnx")


def _facts(kind: str, decoder: dict[str, str], **changed: Any) -> dict[str, Any]:
    crosses = kind == "encoder-decoder"
    return {
        "format": 1,
        "family": "bart" if crosses else "gpt2",
        "kind": kind,
        "precision": "fp32",
        "vocab_size": VOCABULARY,
        "layers": LAYERS,
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "max_length": MAX_LENGTH,
        "max_source": MAX_SOURCE if crosses else None,
        "beams": list(BEAMS) if crosses else None,
        "kv_type": "float32",
        "cross_type": "float32" if kind == "encoder-decoder" else None,
        "minimum_onnxruntime": "1.22",
        "needs_vnni": False,
        "files": {
            "encoder": "encoder.onnx" if crosses else None,
            "decoder": decoder,
            "log_softmax": "log_softmax.onnx",
            "top_k": "top_k.onnx",
        },
        **changed,
    }


def write_decoder(folder: Path, fails: bool = False, **changed: Any) -> Path:
    """A decoder-kind engine folder; `changed` are facts of engine.json that differ. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _save_decoder(folder / "decoder.onnx", fails)
    _save_heads(folder)
    facts = _facts("decoder", {"1": "decoder.onnx"}, **changed)
    (folder / "engine.json").write_text(json.dumps(facts))
    return folder


def write_encoder_decoder(folder: Path, fails: bool = False, **changed: Any) -> Path:
    """An encoder-decoder engine folder with decoders of the widths BEAMS. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    decoder = {str(beams): f"decoder.{beams}.onnx" for beams in BEAMS}
    for beams in BEAMS:
        _save_beam_decoder(folder / decoder[str(beams)], beams, fails)
    _save_encoder(folder / "encoder.onnx", fails)
    _save_heads(folder)
    facts = _facts("encoder-decoder", decoder, **changed)
    (folder / "engine.json").write_text(json.dumps(facts))
    return folder
