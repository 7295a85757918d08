"""The models of engine_toys.py for OpenVINO: the same arithmetic, so that what the engine must answer is the same.

What a source adds up to is its own length in its values, whatever it is padded to. With `rows`, a decoder's
own keys and values stand in rows of one capacity, as T5's do, in the place of blocks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import Attention, DistanceBias, Linear, constant
from hfx.exporter.openvino.attention import RowSelfAttention, attend_pages
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph, Value
from tests.rigs import engine_toys as toys
from tests.rigs.engine_toys import FAILS_ON, HEAD_DIM, HEADS, HIDDEN, LAYERS, VOCABULARY

DECODER, ENCODER = "openvino_decoder.xml", "openvino_encoder.xml"
PADDED = 128
# Ways to run a toy: OpenVINO's with the decoder's own keys and values in blocks, or in rows of one capacity.
DECODER_WAYS = ("onnxruntime", "openvino")
ENCODER_DECODER_WAYS = (*DECODER_WAYS, "openvino-rows")
WAYS = [("decoder", way) for way in DECODER_WAYS] + [("encoder_decoder", way) for way in ENCODER_DECODER_WAYS]
UNUSED = Linear("unused", constant("unused", np.zeros((1, 1), np.float32)))


def write_toy(folder: Path, kind: str, way: str, fails: bool = False, **changed: Any) -> Path:
    """A toy of `kind`, served in one of the WAYS; `changed` are facts of engine.json that differ. Returns `folder`."""
    write = toys.write_decoder if kind == "decoder" else toys.write_encoder_decoder
    write(folder, fails, **changed)
    return folder if way == "onnxruntime" else add_openvino(folder, fails=fails, rows=way == "openvino-rows")


def add_openvino(folder: Path, *, fails: bool = False, rows: bool = False) -> Path:
    """Add OpenVINO's models to a toy of engine_toys.py, and say in its engine.json that they serve."""
    facts = json.loads((folder / "engine.json").read_text())
    crosses = facts["kind"] == "encoder-decoder"
    if crosses:
        _save_encoder(folder / ENCODER, fails)
        _save_steps(folder / DECODER, fails, rows)
    else:
        _save_decoder(folder / DECODER, fails)
    facts["runtime"] = "openvino"
    files = {"decoder": DECODER, "encoder": ENCODER if crosses else None}
    facts["openvino"] = {"minimum": "2026.4", "kv_type": "f32", "group": 0, **files}
    (folder / "engine.json").write_text(json.dumps(facts))
    return folder


def _save_decoder(path: Path, fails: bool) -> None:
    g = OpenVinoGraph("toy")
    ids, positions = (g.input(name, np.int64, [ANY]) for name in ("input_ids", "position_ids"))
    features, lengths = _features(g, ids, positions, fails), _floats(_plus(g, positions, 1))
    last, rows = g.input("last", np.int64, [ANY]), g.const(0, np.int64)
    terms: list[Value] = []
    for layer in range(LAYERS):
        attended = attend_pages(g, "self", layer, _qkv(g, features, layer), 1.0)
        terms += _terms(g, ops.gather(attended, last, rows), ops.gather(lengths, last, rows))
    _head(g, terms)
    g.save(path)


def _save_steps(path: Path, fails: bool, rows: bool) -> None:
    g = OpenVinoGraph("toy")
    ids, positions = (g.input(name, np.int64, [ANY]) for name in ("input_ids", "position_ids"))
    features, lengths = _features(g, ids, positions, fails), _floats(_plus(g, positions, 1))
    no_bias = DistanceBias(constant("bias", np.zeros((1, HEADS), np.float32)), 0)
    own = RowSelfAttention(g, positions, no_bias, [])
    terms, source_terms = [], []
    for layer in range(LAYERS):
        qkv = _qkv(g, features, layer)
        if rows:
            attended = own(ops.concat(qkv, 1), layer, Attention(UNUSED, UNUSED, HEADS, HEADS, HEAD_DIM, 1.0))
        else:
            attended = attend_pages(g, "self", layer, qkv, 1.0)
        terms += _terms(g, attended, lengths)
        source_terms += _terms(g, _cross(g, layer, ids), g.const(1, np.float32))
    _head(g, [*terms, *source_terms])
    if rows:
        g.output("new_kv", own.new_kv(HEADS, HEAD_DIM))
    g.save(path)


def _save_encoder(path: Path, fails: bool) -> None:
    g = OpenVinoGraph("toy")
    ids = g.input("input_ids", np.int64, [ANY, ANY])
    lead, flat = ops.shape_of(ids), g.const([-1], np.int64)
    width = ops.gather(lead, g.const(1, np.int64), g.const(0, np.int64))
    lengths = ops.unsqueeze(g.input("lengths", np.int64, [ANY]), g.const([1], np.int64))
    own_length = ops.reshape(ops.broadcast(lengths, lead), g.const([-1, 1], np.int64), False)
    count = ops.range(g.const(0, np.int64), width, g.const(1, np.int64), "i64")
    positions = ops.reshape(ops.broadcast(count, lead), flat, False)
    features = _features(g, ops.reshape(ids, flat, False), positions, fails)
    own = np.zeros(2 * HIDDEN, np.float32)
    own[HIDDEN + 3] = 1  # the column that is added up, which attention gives the mean of
    factors = ops.add(ops.multiply(g.const(own, np.float32), _floats(own_length)), g.const(1 - own, np.float32))
    parts = g.const([2, HEADS, HEAD_DIM], np.int64)
    for layer in range(LAYERS):
        weights = g.const(toys._key_value_weights(layer), np.float32)
        packed = ops.multiply(ops.matmul(features, weights, False, False), factors)
        by_part = ops.reshape(packed, ops.concat([lead, parts], 0), False)
        g.output(f"cross_{layer}", ops.transpose(by_part, g.const([0, 2, 3, 1, 4], np.int64)))
    g.save(path)


def _cross(g: OpenVinoGraph, layer: int, ids: Value) -> Value:
    """[rows, HIDDEN]: all rows ask the same, so that the beams of a unit lie in no order that matters."""
    key, value = (g.input(f"cross_{part}_last.{layer}", np.float32, [ANY, HIDDEN]) for part in "kv")
    zero = g.const([0], np.int64)
    units = ops.gather(ops.shape_of(key), zero, zero)
    beams = ops.divide(ops.shape_of(ids), units)
    query = np.zeros((1, HEADS, 1, HEAD_DIM), np.float32)
    query[0, 1, 0, 0] = 1
    heads, dim = g.const([HEADS], np.int64), g.const([HEAD_DIM], np.int64)
    asked = ops.broadcast(g.const(query, np.float32), ops.concat([units, heads, beams, dim], 0))
    flat = ops.reshape(asked, ops.concat([units, g.const([-1], np.int64)], 0), False)
    attended = attend_pages(g, "cross", layer, (flat, key, value), 1.0)
    by_head = ops.reshape(attended, ops.concat([units, heads, beams, dim], 0), False)
    by_beam = ops.transpose(by_head, g.const([0, 2, 1, 3], np.int64))
    return ops.reshape(by_beam, g.const([-1, HIDDEN], np.int64), False)


def _features(g: OpenVinoGraph, ids: Value, positions: Value, fails: bool) -> Value:
    """[tokens, 5], as engine_toys._features."""
    tokens = _floats(_refusing(g, ids) if fails else ids)
    cycles = [_floats(ops.floor_mod(positions, g.const(size, np.int64))) for size in (3, 2)]
    weighted = [ops.multiply(tokens, ops.add(cycle, g.const(1, np.float32))) for cycle in cycles]
    one = ops.add(ops.multiply(tokens, g.const(0, np.float32)), g.const(1, np.float32))
    columns = [one, tokens, _floats(positions), *weighted]
    return ops.concat([ops.unsqueeze(column, g.const([1], np.int64)) for column in columns], 1)


def _refusing(g: OpenVinoGraph, ids: Value) -> Value:
    """`ids`, beside a search for the best three of two numbers where FAILS_ON is among them."""
    zero, axis = g.const(0, np.float32), g.const([0], np.int64)
    refused = ops.convert(ops.equal(ids, g.const(FAILS_ON, np.int64)), "i64")
    count = ops.add(ops.reduce_max(refused, axis, False), g.const(2, np.int64))
    best = ops.topk(ops.broadcast(zero, g.const([2], np.int64)), count, 0, "max", "none").output(0)
    return ops.add(ids, ops.convert(ops.reduce_sum(best, axis, False), "i64"))


def _qkv(g: OpenVinoGraph, features: Value, layer: int) -> list[Value]:
    weights = [toys._query_weights(), *np.split(toys._key_value_weights(layer), 2, axis=1)]
    return [ops.matmul(features, g.const(part, np.float32), False, False) for part in weights]


def _terms(g: OpenVinoGraph, attended: Value, length: Value) -> tuple[Value, Value]:
    one = g.const(1, np.int64)
    mean = ops.gather(attended, g.const(3, np.int64), one)
    return ops.multiply(mean, length), ops.gather(attended, g.const(HEAD_DIM + 5, np.int64), one)


def _head(g: OpenVinoGraph, terms: Sequence[Value]) -> None:
    total = g.const(1, np.int64)
    for factor, term in zip((1, 3, 5, 7, 11, 13, 17, 19), terms, strict=False):
        whole = ops.convert(ops.floor(ops.add(term, g.const(0.5, np.float32))), "i64")
        total = ops.add(total, ops.multiply(whole, g.const(factor, np.int64)))
    chosen = ops.floor_mod(total, g.const(VOCABULARY, np.int64))
    table = np.full((VOCABULARY, PADDED), -1e30, np.float32)
    table[:, :VOCABULARY] = toys.TABLE
    g.output("logits", ops.gather(g.const(table, np.float32), chosen, g.const(0, np.int64)))
    g.output("next_ids", ops.unsqueeze(chosen, g.const([1], np.int64)))


def _floats(x: Value) -> Any:
    return ops.convert(x, "f32")


def _plus(g: OpenVinoGraph, x: Value, number: int) -> Any:
    return ops.add(x, g.const(number, np.int64))
