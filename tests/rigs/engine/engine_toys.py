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

from hfx.exporter.graph.generator import choose_graph, log_softmax_graph, top_k_graph
from hfx.exporter.graph.writer import CONTRIB, GraphWriter

VOCABULARY = 29
LAYERS, HEADS, HEAD_DIM = 2, 2, 8
HIDDEN = HEADS * HEAD_DIM
MAX_LENGTH, MAX_SOURCE = 64, 48
BEAMS = (1, 2, 3, 4)
FAILS_ON = VOCABULARY - 1  # the token that a model made with fails=True refuses


def _table() -> np.ndarray:
    values = np.random.default_rng(7).uniform(0, 1.5, (VOCABULARY, VOCABULARY)).astype(np.float32)
    np.fill_diagonal(values, 2.0)
    return values


TABLE = _table()


def mixed(tokens: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the four terms of `target` without their factors."""
    thirds = sum(token * (1 + at % 3) for at, token in enumerate(tokens))
    halves = sum(token * (1 + at % 2) for at, token in enumerate(tokens))
    return thirds, tokens[0], halves, tokens[-1]


def target(fed: Sequence[int], source: Sequence[int] = ()) -> int:
    """Return the token that the models rank first after the decoder was fed `fed`."""
    total = sum(factor * term for factor, term in zip((1, 3, 5, 7), mixed(fed), strict=True)) + 1
    if source:
        total += sum(factor * term for factor, term in zip((11, 13, 17, 19), mixed(source), strict=True))
    return total % VOCABULARY


def logits(fed: Sequence[int], source: Sequence[int] = ()) -> np.ndarray:
    """Return [VOCABULARY] float32: the models' logits after `fed`."""
    return TABLE[target(fed, source)]


def greedy(fed: Sequence[int], count: int, source: Sequence[int] = (), eos: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the tokens of plain greedy decoding: at most `count`, including the first of `eos`."""
    tokens = list(fed)
    for _ in range(count):
        tokens.append(target(tokens, source))
        if tokens[-1] in eos:
            break
    return tuple(tokens[len(fed) :])


def op(g: GraphWriter, kind: str, *inputs: str, **attributes: Any) -> str:
    return g.node(kind, inputs, **attributes)


def whole(g: GraphWriter, *values: int) -> str:
    """Add a constant of integers."""
    return g.const(values, np.int64)


def real(g: GraphWriter, values: Any) -> str:
    """Add a constant of floats."""
    return g.const(values, np.float32)


def _features(g: GraphWriter, tokens: str, positions: str) -> str:
    """Add [rows, width, 5]: one, the token, its position, the token times each of the two weights of its position."""
    cycles = [op(g, "Mod", positions, whole(g, size)) for size in (3, 2)]
    weighted = [op(g, "Mul", tokens, g.cast(op(g, "Add", cycle, whole(g, 1)), np.float32)) for cycle in cycles]
    one = op(g, "Add", op(g, "Mul", tokens, real(g, 0)), real(g, 1))
    columns = [one, tokens, g.cast(positions, np.float32), *weighted]
    return op(g, "Concat", *(op(g, "Unsqueeze", column, whole(g, -1)) for column in columns), axis=-1)


def _key_value_weights(layer: int) -> np.ndarray:
    """Return [5, 2 * HIDDEN], from features to K | V.

    Head 0's value is a weighted token, head 1's is a token found by its key.
    """
    weights = np.zeros((5, 2 * HIDDEN), np.float32)
    weights[2, HEAD_DIM] = -20 if layer == 0 else 20  # head 1 finds the first or the last position
    weights[3 + layer, HIDDEN + 3] = 1
    weights[1, HIDDEN + HEAD_DIM + 5] = 1
    return weights


def _query_weights() -> np.ndarray:
    weights = np.zeros((5, HIDDEN), np.float32)
    weights[0, HEAD_DIM] = 1
    return weights


def _terms(g: GraphWriter, attended: str, length: str) -> tuple[str, str]:
    """From attended [rows, HIDDEN] and length [rows], add the weighted sum over positions and the found token."""
    mean, found = (op(g, "Gather", attended, g.const(at, np.int64), axis=1) for at in (3, HEAD_DIM + 5))
    return op(g, "Mul", mean, length), found


def _head(g: GraphWriter, terms: Sequence[str]) -> None:
    """Add logits and next_ids of the terms [rows] float, in the order of the module's formula."""
    total = whole(g, 1)
    for factor, term in zip((1, 3, 5, 7, 11, 13, 17, 19), terms, strict=False):
        rounded = g.cast(op(g, "Floor", op(g, "Add", term, real(g, 0.5))), np.int64)
        total = op(g, "Add", total, op(g, "Mul", rounded, whole(g, factor)))
    logits = op(g, "Gather", real(g, TABLE), op(g, "Mod", total, whole(g, VOCABULARY)))
    g.output("next_ids", np.int64, ["rows", 1], op(g, "ArgMax", logits, axis=-1, keepdims=1))
    g.output("logits", np.float32, ["rows", VOCABULARY], logits)


def _tokens(g: GraphWriter, fails: bool, shape: Sequence[str | int]) -> str:
    """Add input_ids as floats, looked up in a table without FAILS_ON if the model shall fail on it."""
    known = VOCABULARY - 1 if fails else VOCABULARY
    return op(g, "Gather", real(g, np.arange(known)), g.input("input_ids", np.int64, shape))


def _attention(
    g: GraphWriter, prefixes: tuple[str, str], layer: int, packed: str, last: Sequence[str], heads: int, lengths: str
) -> str:
    """Add GroupQueryAttention on the cache of a layer; `lengths` is the prefix of the inputs with the filled length."""
    shape = ["cached_rows", HEADS, "capacity", HEAD_DIM]
    past = [g.input(f"{prefixes[0]}{part}_{layer}", np.float32, shape) for part in "kv"]
    present = [f"{prefixes[1]}{part}_{layer}" for part in "kv"]
    inputs = (packed, *last, *past, f"{lengths}seqlens_k", f"{lengths}total_length")
    attributes = {"num_heads": heads, "kv_num_heads": HEADS, "do_rotary": 0, "scale": 1.0}
    attended = f"{prefixes[0]}attended_{layer}"
    g.nodes("GroupQueryAttention", inputs, [attended, *present], CONTRIB, **attributes)
    for name in present:
        g.output(name, np.float32, shape, name)
    return attended


def _self_attention(g: GraphWriter, features: str, layer: int) -> str:
    weights = np.concatenate([_query_weights(), _key_value_weights(layer)], axis=1)
    packed = op(g, "MatMul", features, real(g, weights))
    return _attention(g, ("past_", "present_"), layer, packed, ("", ""), HEADS, "")


def _length(g: GraphWriter, seqlens: str) -> str:
    return g.cast(op(g, "Add", seqlens, g.const([1], np.int32)), np.float32)


def _decoder_inputs(g: GraphWriter, width: int | str, fails: bool) -> tuple[str, str]:
    """Add features of the tokens, and the rows' lengths."""
    shape = ["rows", width]
    features = _features(g, _tokens(g, fails, shape), g.input("position_ids", np.int64, shape))
    lengths = g.input("seqlens_k", np.int32, ["rows"])
    g.input("total_length", np.int32, [])
    return features, _length(g, lengths)


def _save_decoder(path: Path, fails: bool) -> None:
    g = GraphWriter("toy", None)
    features, length = _decoder_inputs(g, "sequence", fails)
    last = g.input("last_index", np.int64, ["rows", 1])
    terms: list[str] = []
    for layer in range(LAYERS):
        attended = _self_attention(g, features, layer)
        terms += _terms(g, op(g, "GatherND", attended, last, batch_dims=1), length)
    _head(g, terms)
    g.save(path)


def _cross_attention(g: GraphWriter, layer: int, beams: int) -> str:
    """Add [rows, HIDDEN]; the beams of a request are query heads that share its keys."""
    last = [g.input(f"cross_{part}_last_{layer}", np.float32, ["requests", 1, HIDDEN]) for part in "kv"]
    query = np.zeros((1, 1, HEADS, beams, HEAD_DIM), np.float32)
    query[0, 0, 1, :, 0] = 1
    shape = op(g, "Concat", op(g, "Shape", "source_seqlens_k"), whole(g, 1, query.size), axis=0)
    packed = op(g, "Expand", real(g, query.reshape(1, 1, -1)), shape)
    attended = _attention(g, ("cross_", "cross_present_"), layer, packed, last, HEADS * beams, "source_")
    by_head = op(g, "Reshape", attended, whole(g, -1, HEADS, beams, HEAD_DIM))
    return op(g, "Reshape", op(g, "Transpose", by_head, perm=[0, 2, 1, 3]), whole(g, -1, HIDDEN))


def _save_beam_decoder(path: Path, beams: int, fails: bool) -> None:
    g = GraphWriter("toy", None)
    features, own = _decoder_inputs(g, 1, fails)
    across = _length(g, g.input("source_seqlens_k", np.int32, ["requests"]))
    g.input("source_total_length", np.int32, [])
    each_row = op(g, "Mul", op(g, "Unsqueeze", across, whole(g, 1)), real(g, np.ones((1, beams))))
    across = op(g, "Reshape", each_row, whole(g, -1))
    terms, source_terms = [], []
    for layer in range(LAYERS):
        attended = op(g, "Reshape", _self_attention(g, features, layer), whole(g, -1, HIDDEN))
        terms += _terms(g, attended, own)
        source_terms += _terms(g, _cross_attention(g, layer, beams), across)
    _head(g, [*terms, *source_terms])
    g.save(path)


def _save_encoder(path: Path, fails: bool) -> None:
    """Save an encoder whose keys and values depend on each source token alone.

    It does not need the lengths, but takes them as real encoders do.
    """
    g = GraphWriter("toy", None)
    tokens = _tokens(g, fails, ["requests", "source"])
    lengths = g.cast(g.input("seqlens_k", np.int32, ["requests"]), np.int64)
    width = g.cast(g.input("total_length", np.int32, []), np.int64)
    count = op(g, "Range", g.const(0, np.int64), width, g.const(1, np.int64))
    positions = op(g, "Expand", op(g, "Unsqueeze", count, whole(g, 0)), op(g, "Shape", "input_ids"))
    # A source beyond its length is NaN, so that a padded position that is read is seen.
    padded = op(g, "Greater", positions, op(g, "Unsqueeze", lengths, whole(g, 1)))
    features = _features(g, op(g, "Where", padded, real(g, np.nan), tokens), positions)
    for layer in range(LAYERS):
        packed = op(g, "MatMul", features, real(g, _key_value_weights(layer)))
        g.output(f"cross_{layer}", np.float32, ["requests", "source", 2 * HIDDEN], packed)
    g.save(path)


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
        "runtime": "onnxruntime",
        "files": {
            "encoder": "encoder.onnx" if crosses else None,
            "decoder": decoder,
            "log_softmax": "log_softmax.onnx",
            "top_k": "top_k.onnx",
        },
        **changed,
    }


def write_decoder(folder: Path, fails: bool = False, chooses: bool = False, **changed: Any) -> Path:
    """Write a decoder engine folder; `changed` are other facts of engine.json. Return `folder`.

    If it `chooses`, the folder has the graph that edits and ranks scores on a device.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _save_decoder(folder / "decoder.onnx", fails)
    return _write_rest(folder, _facts("decoder", {"1": "decoder.onnx"}, **changed), chooses)


def write_encoder_decoder(folder: Path, fails: bool = False, chooses: bool = False, **changed: Any) -> Path:
    """Write an encoder-decoder engine folder with decoders of the widths BEAMS, like `write_decoder`."""
    folder.mkdir(parents=True, exist_ok=True)
    decoder = {str(beams): f"decoder.{beams}.onnx" for beams in BEAMS}
    for beams in BEAMS:
        _save_beam_decoder(folder / decoder[str(beams)], beams, fails)
    _save_encoder(folder / "encoder.onnx", fails)
    return _write_rest(folder, _facts("encoder-decoder", decoder, **changed), chooses)


def _write_rest(folder: Path, facts: dict[str, Any], chooses: bool) -> Path:
    log_softmax_graph(folder / "log_softmax.onnx", VOCABULARY)
    top_k_graph(folder / "top_k.onnx")
    if chooses:
        choose_graph(folder / "choose.onnx", VOCABULARY)
        facts["files"]["choose"] = "choose.onnx"
    (folder / "engine.json").write_text(json.dumps(facts))
    return folder
