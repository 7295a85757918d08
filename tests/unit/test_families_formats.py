"""Weight formats: how far each is from float32, and what is stored once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS, Formats
from tests.unit import graph_rows, tiny_generators
from tests.unit.processors import LEVELS, int8_error

Export = Callable[..., Path]
LENGTHS = (9, 33, 1, 4, 20)
STEPS = 6
# Root-mean-square error of the logits, of their standard deviation; the nets are random, small and two layers deep.
ERRORS = {"fp32": 1e-6, "fp16": 0.005, "int8": int8_error(0.04), "int4": 0.4}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The engine folder of a tiny generator, made once for each format."""

    @cache
    def make(name: str, formats: Formats) -> Path:
        folder = tmp_path_factory.mktemp(name)
        checkpoint = tiny_generators.save(folder, tiny_generators.build(name))
        write_engine_folder(checkpoint, folder / "engine", formats, LEVELS, True)
        return folder / "engine"

    return make


def rows(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, tiny_generators.VOCABULARY, length).tolist() for length in lengths]


INPUTS, ANSWERS = rows(LENGTHS), rows((STEPS,) * len(LENGTHS), seed=1)


def error(export: Export, name: str, formats: Formats) -> float:
    """Root-mean-square error of the logits in `formats`, of the standard deviation of those in fp32."""
    exact, logits = (graph_rows.decoded(export(name, each), INPUTS, ANSWERS) for each in (FORMATS["fp32"], formats))
    return float(np.sqrt(((logits - exact) ** 2).mean()) / exact.std())


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "bart", "pegasus", "t5", "t5-gated"])
def test_a_format_is_as_near_to_float32_as_it_should_be(export: Export, name: str, precision: str) -> None:
    assert error(export, name, FORMATS[precision]) <= ERRORS[precision]


@pytest.mark.parametrize("name", ["gpt2", "bart", "t5"])
@pytest.mark.parametrize("precision", FORMATS)
def test_a_tied_table_is_stored_once(export: Export, name: str, precision: str) -> None:
    folder = export(name, FORMATS[precision])
    graphs = [onnx.load(path, load_external_data=False) for path in folder.glob("*.onnx")]
    tables = {
        tensor.external_data[1].value
        for graph in graphs
        for tensor in graph.graph.initializer
        if len(tensor.dims) == 2 and any(part in tensor.name for part in ("wte", "shared", "lm_head"))
        if "[" not in tensor.name  # a few loud channels of it stand apart
    }
    assert len(tables) == 1


@pytest.mark.parametrize("block", [16, 64])
def test_any_block_of_four_bits_can_be_chosen(export: Export, block: int) -> None:
    assert error(export, "gpt2", replace(FORMATS["int4"], block=block)) <= ERRORS["int4"]


@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "t5"])
def test_a_head_may_have_four_bits_too(export: Export, name: str) -> None:
    formats = replace(FORMATS["int4"], head="int4", embedding="int4")
    assert error(export, name, formats) <= 1.2 * ERRORS["int4"]
