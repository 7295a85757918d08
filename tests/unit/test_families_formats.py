"""Weight formats: how far each is from float32, that a row never depends on its batch, and what is stored once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

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
    made: dict[Any, Path] = {}

    def make(name: str, formats: Formats, levels: int = LEVELS) -> Path:
        key = (name, formats, levels)
        if key not in made:
            folder = tmp_path_factory.mktemp(name)
            write_engine_folder(
                tiny_generators.save(folder, tiny_generators.build(name)), folder / "engine", formats, levels, True
            )
            made[key] = folder / "engine"
        return made[key]

    return make


def rows(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, tiny_generators.VOCABULARY, length).tolist() for length in lengths]


ANSWERS = rows((STEPS,) * len(LENGTHS), seed=1)


def logits(folder: Path, which: list[int]) -> NDArray[Any]:
    """[rows, steps, vocabulary] of these of the rows, computed in one batch."""
    inputs = rows(LENGTHS)
    return graph_rows.decoded(folder, [inputs[i] for i in which], [ANSWERS[i] for i in which])


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "bart", "pegasus", "t5", "t5-gated"])
def test_a_format_is_as_near_to_float32_as_it_should_be(export: Export, name: str, precision: str) -> None:
    everyone = list(range(len(LENGTHS)))
    want = logits(export(name, FORMATS["fp32"]), everyone)
    got = logits(export(name, FORMATS[precision]), everyone)
    assert np.isfinite(got).all()
    assert np.sqrt(((got - want) ** 2).mean()) <= ERRORS[precision] * want.std()


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
    everyone = list(range(len(LENGTHS)))
    want = logits(export("gpt2", FORMATS["fp32"]), everyone)
    got = logits(export("gpt2", replace(FORMATS["int4"], block=block)), everyone)
    assert np.sqrt(((got - want) ** 2).mean()) <= ERRORS["int4"] * want.std()


@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "t5"])
def test_a_head_may_have_four_bits_too(export: Export, name: str) -> None:
    everyone = list(range(len(LENGTHS)))
    want = logits(export(name, FORMATS["fp32"]), everyone)
    got = logits(export(name, replace(FORMATS["int4"], head="int4", embedding="int4")), everyone)
    assert np.sqrt(((got - want) ** 2).mean()) <= 1.2 * ERRORS["int4"] * want.std()
