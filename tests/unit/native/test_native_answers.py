"""Answers by C++ have the bits of the Python step, for generated logits of all magnitudes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.python_backends.inputs import strings
from hfx.python_backends.tasks import feature_extraction
from tests.rigs.checkpoints.encoder_line import postprocessor_for
from tests.unit.native.native_rows import NativeRows, compiled, outcome

ANSWERS = 133
ODD = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 88.7, 89, -103, -104, 3e38, -3e38], np.float32)
SCALES = (1e-3, 1, 10, 100, 1e4)
LABELS = (1, 2, 3, 7, 8, 9, 28, 127, 128, 129, 300)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compiled()


class Generated:
    """Logits and settings that depend on a seed only."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def logits(self, *shape: int) -> NDArray[np.float32]:
        made = (self.random.standard_normal(shape) * self.random.choice(SCALES)).astype(np.float32)
        if self.random.random() < 0.3:
            made = np.round(made)  # equal ones
        if self.random.random() < 0.2:
            odd = self.random.random(shape) < 0.1
            made[odd] = self.random.choice(ODD, odd.sum())
        return made

    def choice(self, *values: Any) -> Any:
        return values[self.random.integers(len(values))]

    def top_k(self, rows: int) -> dict[str, Any]:
        count = self.choice(0, 1, 2, 5, 1000)
        values = np.full((rows, 1), count, np.int32)
        if count and self.random.random() < 0.1:
            values[-1] += 1
        return {"top_k": values} if count else {}

    def flags(self, name: str, rows: int) -> dict[str, Any]:
        values = self.random.random((rows, 1)) < self.choice(0.5, 1)
        return {name: values} if values.any() and self.random.random() < 0.7 else {}


def check(library: ctypes.CDLL, folder: Path, settings: dict[str, Any], given: dict[str, Any]) -> str:
    """Check that a request has the same answer, or the refusal that it returns."""
    postprocessor = postprocessor_for(folder, **settings)
    native = NativeRows(library, None, {}, settings)
    with np.errstate(all="ignore"):
        expected = outcome(lambda: postprocessor.answer(given))
    others = {name: array for name, array in given.items() if name not in ("logits", "window_tokens")}
    native.begin({"text_input": strings(*(["a"] * len(given["logits"]))), **others})
    assert outcome(lambda: native.answer(given["logits"], given.get("window_tokens"))) == expected, (settings, given)
    native.close()
    return expected if isinstance(expected, str) else ""


def test_labels_are_those_of_the_python_step(library: ctypes.CDLL, tmp_path: Path) -> None:
    generated, refusals = Generated(1), set()
    for _ in range(ANSWERS):
        rows, labels = generated.choice(1, 2, 5), generated.choice(*LABELS)
        settings = {
            "task": "text-classification",
            "labels": [f"é {label}" for label in range(labels)],
            "activation": generated.choice("softmax", "sigmoid", "none"),
        } | generated.choice({}, {"default_top_k": None}, {"default_top_k": 3})
        given = {"logits": generated.logits(rows, labels), **generated.top_k(rows)}
        refusals.add(check(library, tmp_path, settings, given))
    assert refusals == {"", "top_k differs between the rows of one request"}


def test_labels_of_windows_are_those_of_the_python_step(library: ctypes.CDLL, tmp_path: Path) -> None:
    generated, refusals = Generated(5), set()
    for _ in range(ANSWERS):
        rows, windows, labels = generated.choice(1, 2, 5), generated.choice(1, 2, 9, 40), generated.choice(*LABELS)
        settings = {
            "task": "text-classification",
            "windows": True,
            "labels": [f"é {label}" for label in range(labels)],
            "activation": generated.choice("softmax", "sigmoid", "none"),
            "default_top_k": None,
        }
        tokens = generated.random.integers(1, 600, (rows, windows)).astype(np.int32)
        tokens[np.arange(windows) >= generated.random.integers(1, windows + 1, (rows, 1))] = 0
        ways = strings(*(generated.choice("mean", "max") for _ in range(rows)))
        given = {"logits": generated.logits(rows, windows, labels), "window_tokens": tokens, "long": ways}
        refusals.add(check(library, tmp_path, settings, given | generated.top_k(rows)))
    assert refusals == {"", "top_k differs between the rows of one request"}


def test_scores_are_those_of_the_python_step(library: ctypes.CDLL, tmp_path: Path) -> None:
    generated = Generated(2)
    for _ in range(ANSWERS // 2):
        rows = generated.choice(1, 2, 5)
        settings = {"task": "text-ranking", "activation": generated.choice("sigmoid", "none")}
        given = {"logits": generated.logits(rows, 1), **generated.flags("raw_scores", rows)}
        assert not check(library, tmp_path, settings, given)


def test_ranks_of_labels_are_those_of_the_python_step(library: ctypes.CDLL, tmp_path: Path) -> None:
    generated, refusals = Generated(3), set()
    for _ in range(ANSWERS):
        rows, labels = generated.choice(1, 2, 3), generated.choice(*LABELS)
        entailment, contradiction = generated.choice((2, 0), (0, -1), (1, 0), (0, 2))
        settings = {"task": "zero-shot-classification", "entailment": entailment, "contradiction": contradiction}
        names = strings(*(f"{label}" for label in range(rows * labels))).reshape(rows, labels)
        logits = generated.logits(rows, max(1, labels + generated.choice(0, 0, 2, -1)), 3)
        given = {"logits": logits, "candidate_labels": names, **generated.top_k(rows)}
        refusals.add(check(library, tmp_path, settings, given | generated.flags("multi_label", rows))[:28])
    assert refusals == {"", "top_k differs between the ro", "candidate_labels has the sha"}


def test_shorter_vectors_are_those_of_the_python_step(library: ctypes.CDLL) -> None:
    generated, refusals = Generated(4), set()
    for _ in range(ANSWERS):
        rows, width = generated.choice(1, 2, 5), generated.choice(*LABELS)
        given = generated.top_k(rows)
        given = {"dimensions": given["top_k"]} if given else {}
        vectors = generated.logits(rows, width) * np.float32(generated.choice(1, 1e-20))
        native = NativeRows(library, None, {})
        native.begin({"text_input": strings(*(["a"] * rows)), **given})
        with np.errstate(all="ignore"):
            expected = outcome(lambda: feature_extraction.Postprocessor().answer({"embedding": vectors, **given}))  # noqa: B023
        assert outcome(lambda: native.embed(vectors)) == expected  # noqa: B023
        native.close()
        refusals.add(expected[:13] if isinstance(expected, str) else "")
    assert refusals == {"", "dimensions is", "dimensions di"}


def test_exponentials_are_numpys_for_floats_of_every_exponent(library: ctypes.CDLL) -> None:
    bits = np.arange(0, 2**32, 4099, np.uint64).astype(np.uint32)  # all of them take a minute, and are equal
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = np.exp(values)
    library.exponentials(values.ctypes.data, len(values))
    assert (values.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"task": "feature-extraction"}, "task"),
        ({"task": None}, "task"),
        ({"labels": []}, "labels"),
        ({"labels": ["a", 1]}, "labels"),
        ({"activation": "tanh"}, "activation"),
        ({"default_top_k": 0}, "default_top_k"),
        ({"default_top_k": "3"}, "default_top_k"),
        ({"task": "zero-shot-classification", "entailment": 2}, "contradiction"),
        ({"task": "zero-shot-classification", "entailment": -1, "contradiction": 0}, "entailment"),
    ],
)
def test_unsupported_settings_of_answers_are_refused(
    changed: dict[str, Any], reason: str, library: ctypes.CDLL
) -> None:
    good = {"task": "text-classification", "labels": ["a", "b"], "activation": "none"}
    NativeRows(library, None, {}, good).close()
    with pytest.raises(ValueError, match=reason):
        NativeRows(library, None, {}, good | changed)


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (1, 2, 2)])
def test_logits_that_do_not_fit_are_refused(shape: tuple[int, ...], library: ctypes.CDLL) -> None:
    native = NativeRows(library, None, {}, {"task": "text-classification", "labels": ["a", "b"], "activation": "none"})
    native.begin({"text_input": strings("a")})
    assert outcome(lambda: native.answer(np.zeros(shape, np.float32))).startswith("the net has ")
    native.close()
