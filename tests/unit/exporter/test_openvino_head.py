"""The head in OpenVINO: the best token of a vocabulary that is padded, in every format, and the true logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Head, Linear, constant
from hfx.exporter.openvino.generator import dynamic_group
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph
from hfx.exporter.openvino.linear import Activations, HeadWriter, LinearWriter
from hfx.exporter.quantize.generator import FORMATS, WeightFormat
from tests.rigs.openvino_driver import FORMS, Compiled
from tests.rigs.processors import FEWEST_ROWS, LEVELS, error, int8_error

Array = NDArray[Any]
WIDTH = 128
VOCABULARIES = (1, 29, 127, 128, 129, 384, 500)
ERRORS: dict[WeightFormat, float] = {"fp32": 1e-6, "int8": int8_error(0.02), "int4": 0.2}
Opened = Callable[[Array], tuple[Array, Array, Array]]


def opened(
    folder: Path,
    table: Array,
    form: WeightFormat = "fp32",
    activations: Activations = "group",
    bias: Array | None = None,
    loud: tuple[int, ...] = (),
) -> Opened:
    """A head: hidden [rows, WIDTH] -> next_ids [rows], true logits [rows, vocabulary], and those of the padding."""
    graph, vocabulary = OpenVinoGraph("head"), len(table)
    hidden = graph.input("hidden", np.float32, [ANY, table.shape[1]])
    linear = Linear("head", constant("head", table), None if bias is None else constant("bias", bias))
    HeadWriter(graph, LinearWriter(graph, form, LEVELS, 32, activations))(hidden, Head(linear, None, loud), vocabulary)
    graph.save(folder / "head.xml")
    compiled = Compiled(folder / "head.xml", DYNAMIC_QUANTIZATION_GROUP_SIZE=str(dynamic_group(FORMATS[form])))

    def call(rows: Array) -> tuple[Array, Array, Array]:
        found = compiled({"hidden": rows})
        assert found["next_ids"].shape == (len(rows), 1) and found["next_ids"].dtype == np.int64
        logits = found["logits"]
        assert logits.shape == (len(rows), vocabulary + -vocabulary % 128) and logits.dtype == np.float32
        assert (found["next_ids"][:, 0] == logits.argmax(1)).all()
        if "logit_scale" in found:
            assert found["logit_scale"].shape == (len(rows), 1)
            logits = logits * found["logit_scale"]
        return found["next_ids"][:, 0], logits[:, :vocabulary], logits[:, vocabulary:]

    return call


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_logits_are_those_of_the_matrix(
    tmp_path: Path, form: WeightFormat, activations: Activations, vocabulary: int
) -> None:
    table, rows = normal(vocabulary, WIDTH), normal(9, WIDTH, seed=1)
    ids, logits, _ = opened(tmp_path, table, form, activations)(rows)
    want = rows @ table.T
    assert error(logits, want) < ERRORS[form]
    assert (ids == logits.argmax(1)).all()
    if form == "fp32":
        assert (ids == want.argmax(1)).all()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("vocabulary", [29, 129])
@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_padding_is_never_chosen_however_bad_all_tokens_are(
    tmp_path: Path, form: WeightFormat, activations: Activations, vocabulary: int, biased: bool
) -> None:
    table = -np.abs(normal(vocabulary, WIDTH)) - 1
    rows = np.abs(normal(5, WIDTH, seed=1)) * np.array([1e-6, 1, 1e3, 1e6, 0], np.float32)[:, None]
    bias = np.full(vocabulary, -1e4, np.float32) if biased else None
    ids, logits, pads = opened(tmp_path, table, form, activations, bias)(rows)
    assert (ids < vocabulary).all()
    # A scale of a row may make padding small too, but its order stands, and nobody reads it.
    assert (logits[1:4] < 0).all() and (pads < 0).all()


@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_the_first_of_equal_tokens_is_chosen(tmp_path: Path, form: WeightFormat, activations: Activations) -> None:
    table = normal(400, WIDTH) * np.float32(0.01)
    best = normal(1, WIDTH, seed=2)
    for tied in (399, 260, 255, 130):  # in three groups
        table[tied] = best
    ids, _, _ = opened(tmp_path, table, form, activations)(best)
    assert ids.tolist() == [130]
    ids, logits, _ = opened(tmp_path, np.zeros((400, WIDTH), np.float32), form, activations)(best)
    assert ids.tolist() == [0] and not logits.any()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activations", ["row", "group"])
def test_loud_channels_are_multiplied_apart(tmp_path: Path, activations: Activations, biased: bool) -> None:
    table, rows, loud = normal(200, WIDTH), normal(8, WIDTH, seed=1), (3, 77)
    rows[:, list(loud)] *= 3000
    bias = normal(200, seed=4) if biased else None
    _, logits, _ = opened(tmp_path, table, "int8", activations, bias, loud)(rows)
    want = rows @ table.T + (0 if bias is None else bias)
    quiet = np.delete(rows, loud, 1) @ np.delete(table, loud, 1).T
    assert np.sqrt(((logits - want) ** 2).mean()) < ERRORS["int8"] * quiet.std()


@pytest.mark.parametrize("loud", [(), (5,)])
@pytest.mark.parametrize(("form", "activations"), FORMS[1:])
def test_a_rows_logits_and_choice_are_the_same_bits_alone(
    tmp_path: Path, form: WeightFormat, activations: Activations, loud: tuple[int, ...]
) -> None:
    head = opened(tmp_path, normal(300, WIDTH), form, activations, None, loud)
    rows = normal(64, WIDTH, seed=1)
    rows[1::2] *= 1e5
    ids, logits, _ = head(rows)
    for at in (0, 1, 40, 63):
        alone, own, _ = head(np.repeat(rows[at : at + 1], FEWEST_ROWS, axis=0))
        assert alone[0] == ids[at]
        assert np.array_equal(own[0], logits[at]) if not loud else error(own[0], logits[at]) < 1e-6  # a sum of floats
