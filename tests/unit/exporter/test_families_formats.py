"""Engine folders of every format: errors against float32, shared tables, and limits of processors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from hfx.exporter.generation.engine_folder import read_net, write_engine_folder
from hfx.exporter.graph.blocks import Linear, Net
from hfx.exporter.quantize.generator import FORMATS, Formats
from hfx.exporter.quantize.linears import rank_linears
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import graph_rows
from tests.rigs.engine.graph_rows import random_rows
from tests.rigs.machine.processors import LEVELS, int8_error

Export = Callable[..., Path]
LENGTHS = (9, 33, 1, 4, 20)
STEPS = 6
DECODERS = ["gpt2", "gpt2-untied", "neox", "opt", "opt-350", "llama", "qwen3", "mistral", "gemma", "smollm"]
NAMES = [*DECODERS, "bart", "pegasus", "t5", "t5-gated"]
# Root-mean-square error of the logits, of their standard deviation; the nets are random, small and not deep.
ERRORS = {"fp32": 1e-6, "fp16": 0.005, "int8": int8_error(0.045), "int4": 0.4}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A function that returns the engine folder of a tiny generator, made once for each format."""

    @cache
    def make(name: str, formats: Formats) -> Path:
        folder = tmp_path_factory.mktemp(name)
        checkpoint = tiny_generators.save(folder, tiny_generators.build(name))
        write_engine_folder(checkpoint, folder / "engine", formats, LEVELS)
        return folder / "engine"

    return make


INPUTS, ANSWERS = random_rows(LENGTHS), random_rows((STEPS,) * len(LENGTHS), seed=1)


def error(export: Export, name: str, formats: Formats) -> float:
    """Return the root-mean-square error of the logits in `formats`, relative to the standard deviation in fp32."""
    exact, logits = (graph_rows.decoded(export(name, each), INPUTS, ANSWERS) for each in (FORMATS["fp32"], formats))
    return float(np.sqrt(((logits - exact) ** 2).mean()) / exact.std())


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("name", NAMES)
def test_each_format_stays_within_its_error_against_float32(export: Export, name: str, precision: str) -> None:
    assert error(export, name, FORMATS[precision]) <= ERRORS[precision]


@pytest.mark.parametrize("name", ["gpt2", "gemma", "neox-in-turn", "opt-350", "llama-tied", "qwen3-tied", "bart", "t5"])
@pytest.mark.parametrize("precision", FORMATS)
def test_a_tied_table_is_stored_once(export: Export, name: str, precision: str) -> None:
    folder = export(name, FORMATS[precision])
    graphs = [onnx.load(path, load_external_data=False) for path in folder.glob("*.onnx")]
    tables = {
        tensor.external_data[1].value
        for graph in graphs
        for tensor in graph.graph.initializer
        if len(tensor.dims) in (2, 4)
        and any(part in tensor.name for part in ("wte", "shared", "embed_in", "embed_tokens", "lm_head"))
        if "[" not in tensor.name  # a few loud channels of it stand apart
    }
    assert len(tables) == 1


@pytest.mark.parametrize("block", [16, 64])
def test_int4_blocks_of_16_and_64_stay_within_the_error(export: Export, block: int) -> None:
    assert error(export, "gpt2", replace(FORMATS["int4"], block=block)) <= ERRORS["int4"]


@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "t5"])
def test_a_head_may_have_four_bits_too(export: Export, name: str) -> None:
    formats = replace(FORMATS["int4"], head="int4", embedding="int4")
    assert error(export, name, formats) <= 1.2 * ERRORS["int4"]


@pytest.mark.parametrize("name", NAMES)
def test_linears_that_stay_in_float32_add_no_error(export: Export, tmp_path: Path, name: str) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build(name))
    names = tuple(linear.name for linear in linears_of(read_net(checkpoint, FORMATS["fp32"], LEVELS, None)))
    plain = replace(FORMATS["int8"], head="fp32", embedding="fp32", cross="float32")
    without_error, others = (error(export, name, replace(plain, kept=kept)) for kept in (names, names[1:]))
    assert without_error <= 2e-6 < others


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("name", NAMES)
def test_every_linear_is_ranked_by_its_error(tmp_path: Path, name: str, precision: str) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build(name))
    net = read_net(checkpoint, FORMATS["fp32"], LEVELS, None)
    errors = rank_linears(net, FORMATS[precision], LEVELS)
    assert sorted(errors) == sorted(linear.name for linear in linears_of(net))
    assert all(0 < error < 1 for error in errors.values())
    assert list(errors.values()) == sorted(errors.values(), reverse=True)


def linears_of(net: Net) -> list[Linear]:
    """Return the linears of all layers, and the projections."""
    found = [each for each in (net.decoder.embedding.projection, net.head.projection) if each is not None]
    for layer in (layer for stack in (net.encoder, net.decoder) if stack is not None for layer in stack.layers):
        found += [layer.attention.qkv, layer.attention.out, layer.feed_forward.up, layer.feed_forward.down]
        found += [] if layer.cross is None else [layer.cross.query, layer.cross.memory, layer.cross.out]
    return found


@pytest.mark.parametrize("levels", [127, 126])
def test_only_full_int8_weights_need_vnni(tmp_path: Path, levels: int) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("t5"))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["int8"], levels)
    assert json.loads((tmp_path / "engine" / "engine.json").read_text())["needs_vnni"] is (levels == 127)


@pytest.mark.parametrize("name", ["gpt2", "gemma", "neox", "opt-narrow", "llama", "qwen3-window", "bart", "t5-gated"])
@pytest.mark.parametrize("precision", FORMATS)
def test_graphs_use_standard_operators_and_contrib_ones_only(export: Export, name: str, precision: str) -> None:
    for path in export(name, FORMATS[precision]).glob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        domains = {opset.domain for opset in model.opset_import}
        assert domains - {"hfx"} == {"", "com.microsoft"}
        assert {node.op_type for node in model.graph.node if node.domain == "hfx"} == {f.name for f in model.functions}
        assert model.ir_version <= 10
        onnx.checker.check_model(str(path), full_check=False)
        standard = {node.op_type for node in model.graph.node if not node.domain}
        assert all(onnx.defs.has(op) for op in standard)


def test_decoders_of_all_beam_widths_read_one_file(export: Export) -> None:
    places = []
    for beams in (1, 8):
        graph = onnx.load(export("bart", FORMATS["fp32"]) / f"decoder.{beams}.onnx", load_external_data=False).graph
        places.append({t.name: [e.value for e in t.external_data] for t in graph.initializer if t.external_data})
    assert places[0] == places[1]
    assert {place[0] for place in places[0].values()} == {"weights.bin"}
