"""Token tensors and refusals by C++ equal those of the Python step, for generated requests and settings."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hfx.exporter.compiled_tokenizer import compile_tokenizer
from hfx.python_backends import tasks
from hfx.python_backends.encoding import MAX_LABELS, Encoder, make_encoder, tensors
from hfx.python_backends.errors import EngineError, InvalidInput, with_reason
from hfx.python_backends.inputs import LONGEST_TEXT, strings
from hfx.python_backends.settings import Settings
from tests.rigs.machine.tiers import full
from tests.unit.native.native_rows import NativeRows, compiled, outcome
from tests.zoo import tokenization

LINES = ("Anna went from Paris to the market in Berlin. The weather was awful!", "Don't you think it's a 'nice' day?")
TASKS = ("text-classification", "feature-extraction", "text-ranking", "zero-shot-classification")
PROMPTED = TASKS[1:3]
WINDOWS = "text-classification in windows"
KINDS = ("bert", "roberta", "xlm-roberta")
WORDS = (
    "the",
    "a",
    "Paris",
    "weather",
    "café",
    "漢字",
    "😀",
    "[SEP]",
    "<mask>",
    "x" * 30,
    "unbelievably" * 12,
    "!?",
    "\x00",
)
FLOODS = ("a", " ", "é", "the ", "\x00", "漢", "!")
WRONG = (b"\xff", b"\xc3", b"\xe2\x82", b"\x80", b"\xf0\x9f", b"\xed\xa0\x80")
REQUESTS = [200, full(400)]
WRONG_TEXTS = 0.05  # the share that is no UTF-8
PROMPTS = {"query": "weather in Paris: ", "": "", "é'": "unbelievab", "[SEP]": "[SEP] a <mask>", "long": "é, " * 80}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compiled()


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tokenizer.json, and its compiled file."""
    folder = tmp_path_factory.mktemp(request.param)
    backend = tokenization.train(request.param, LINES, 300, 64).backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    (folder / "tokenizer.hfx").write_bytes(compile_tokenizer(folder / "tokenizer.json"))
    return folder / "tokenizer.json", folder / "tokenizer.hfx"


class Generated:
    """Settings and requests that depend on a seed only."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def settings(self, task: str) -> Settings:
        choice = self._random.choice
        if task == WINDOWS:
            settings = self.settings(TASKS[0])
            return replace(settings, stride=self._random.randrange(settings.max_length // 2))
        most = choice([40, 41, 60, 140] if task == TASKS[3] else [6, 8, 16, 17, 40, 140])
        widths = sorted({*self._random.sample(range(1, most + 1), 2), most + choice([0, 5])})
        inputs = ("input_ids", "attention_mask", *choice([(), ("token_type_ids",)]))
        template, side = choice(["This example is {}.", "{}", "é {} !"]), choice(["left", "right"])
        settings = Settings(task, most, tuple(widths), 7, choice([0, 1]), side, inputs, hypothesis_template=template)
        if task in PROMPTED and self._random.random() < 0.5:
            texts = dict(self._random.sample(list(PROMPTS.items()), choice([1, 3])))
            default, pooled = choice(["", *texts.values()]), task == "text-ranking" or choice([True, False])
            settings = replace(settings, prompts=texts, default_prompt=default, pools_prompt=pooled)
        return settings if self._random.random() < 0.8 else replace(settings, vocab_size=choice([2, 30, 300]))

    def request(self, settings: Settings) -> dict[str, Any]:
        rows, limit = self._random.choice([1, 1, 2, 3]), 16 * settings.max_length
        return self.prompts(settings, rows) | self.texts(settings, rows, limit)

    def prompts(self, settings: Settings, rows: int) -> dict[str, Any]:
        if settings.task not in PROMPTED or self._random.random() < 0.4:
            return {}
        names = [self._random.choice([*(settings.prompts or PROMPTS)]).encode() for _ in range(rows)]
        if self._random.random() < 0.1:
            names[-1] = self._random.choice([b"unknown", b"\xff", "é".encode() * 70, b"x" * 61])
        texts = [self.text(self._random.choice([5, 30, 3000])) for _ in range(rows)]
        given = {"prompt_name": strings(*names), "prompt": strings(*texts)}
        kept = self._random.choice([["prompt_name"], ["prompt_name"], ["prompt"], ["prompt"], [*given]])
        return {name: given[name] for name in kept}

    def texts(self, settings: Settings, rows: int, limit: int) -> dict[str, Any]:
        texts = strings(*(self.text(100_000) for _ in range(rows)))
        if settings.task == "text-ranking":
            queries = [self.text(self._random.choice([30, limit + 9])) for _ in range(rows)]
            return {
                "query": strings(*(queries if self._random.random() < 0.7 else queries[:1] * rows)),
                "text_input": texts,
            }
        if settings.task != "zero-shot-classification":
            return {"text_input": texts, **(self.reading(settings, rows) if settings.stride is not None else {})}
        count = self._random.choice([1, 2, 3])
        labels = [self.label(settings.max_length) for _ in range(rows * count)]
        return {"text_input": texts, "candidate_labels": strings(*labels).reshape(rows, count)}

    def reading(self, settings: Settings, rows: int) -> dict[str, Any]:
        wrong = [b"", b"chunk", b"\xff", "é".encode() * 70] if self._random.random() < 0.1 else []
        windows = self._random.random() < 0.7
        known = [b"mean", b"max"] if windows else [b"mean", b"max", b"truncate", b"error"]
        ways = [self._random.choice([*known, *wrong]) for _ in range(rows)]
        strides = [[self._random.choice([0, 0, 1, 3, settings.max_length - 3, -1])] for _ in range(rows)]
        given = {"long": strings(*ways), "stride": np.array(strides, np.int32)}
        return {name: array for name, array in given.items() if self._random.random() < (0.9 if windows else 0.4)}

    def text(self, most: int) -> bytes:
        choice = self._random.choice
        raw = "".join(
            choice(WORDS) + choice([" ", " ", "", " " * 60]) for _ in range(choice([0, 1, 9, 80, 900]))
        ).encode()
        flood = choice(FLOODS).encode() * choice([0, 0, 0, 300, 100_000])
        raw = choice([raw + flood, flood + raw])[:most]
        if self._random.random() < WRONG_TEXTS:
            at = choice([0, len(raw), self._random.randrange(len(raw) + 1)])
            raw = raw[:at] + choice(WRONG) + raw[at:]
        return raw

    def label(self, max_length: int) -> bytes:
        if self._random.random() < 0.04:
            return self._random.choice([b"", b" \t", "\u2003\x1c\x85".encode(), b"x" * (16 * max_length + 1), b"\xff"])
        words = [self._random.choice(WORDS[:7]) for _ in range(self._random.choice([1, 1, 2, max_length // 4]))]
        return " ".join(words).encode()[: 16 * max_length]


def encoded(encoder: Encoder, given: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors that the Python step makes of a request."""
    rows = encoder.encode(encoder.items(given))
    for row in rows:
        if isinstance(row, EngineError):
            raise InvalidInput(with_reason(row.reason, row))
        if isinstance(row, Exception):
            raise row
    return tensors([[row for row in rows if not isinstance(row, Exception)]], encoder.settings)[0]


@pytest.fixture
def both(library: ctypes.CDLL, files: tuple[Path, Path]) -> Iterator[Callable[[Settings], tuple[Encoder, NativeRows]]]:
    """A function that returns both encoders of given settings."""
    opened: list[NativeRows] = []

    def open_both(settings: Settings) -> tuple[Encoder, NativeRows]:
        opened.append(NativeRows(library, files[1], vars(settings)))
        return make_encoder(files[0], settings), opened[-1]

    yield open_both
    for rows in opened:
        rows.close()


def check(encoder: Encoder, native: NativeRows, given: dict[str, Any]) -> str:
    """Check that a request has the same tensors, or the refusal that it returns."""
    expected = outcome(lambda: encoded(encoder, given))
    native.begin(given)
    assert outcome(native.encode) == expected, (encoder.settings, given)
    return expected if isinstance(expected, str) else ""


@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize("task", [*TASKS, WINDOWS])
def test_tensors_and_refusals_are_those_of_the_python_step(task: str, requests: int, both: Any) -> None:
    generated, refusals = Generated(task), []
    for _ in range(requests // 5):
        encoder, native = both(generated.settings(task))
        refusals += [check(encoder, native, generated.request(encoder.settings)) for _ in range(5)]
    assert refusals.count("") > requests / 5  # and there are tensors to compare
    assert len(set(refusals)) > 3


def test_the_first_bad_row_of_a_request_is_refused(both: Any) -> None:
    encoder, native = both(Settings("text-classification", 16, (16,), vocab_size=20))
    assert "embedding" in check(encoder, native, {"text_input": strings("Berlin", b"\xff")})
    assert "0xff" in check(encoder, native, {"text_input": strings("", b"\xff", "Berlin")})


def test_texts_and_label_lists_above_the_limit_are_refused_first(both: Any) -> None:
    huge = strings(b"\xff" * (LONGEST_TEXT + 1), "a")
    encoder, native = both(Settings("text-ranking", 16, (16,)))
    for given in ({"query": huge, "text_input": huge}, {"query": strings(b"\xff", "b"), "text_input": huge}):
        assert "above the limit" in check(encoder, native, given)
    encoder, native = both(Settings("zero-shot-classification", 40, (40,)))
    labels = np.array([[b"a"] * (MAX_LABELS + 1)], object)
    assert "at most 1000" in check(encoder, native, {"text_input": strings(b""), "candidate_labels": labels})
    assert (
        check(encoder, native, {"text_input": strings(b""), "candidate_labels": labels[:, 1:]}) == "text_input is empty"
    )
    none = np.zeros((1, 0), object)
    assert "at least one" in check(encoder, native, {"text_input": strings(b"\xff"), "candidate_labels": none})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"task": "fill-mask"}, "task"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 3}, "no room"),
        ({"widths": [32, 16]}, "ascend"),
        ({"widths": [16]}, "no width"),
        ({"widths": []}, "no width"),
        ({"pad_id": -1}, "pad_id"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"truncation_side": "up"}, "truncation_side"),
        ({"hypothesis_template": "no place"}, "no place"),
        ({"hypothesis_template": "{} {0}"}, "braces"),
        ({"hypothesis_template": "{{}} {}"}, "braces"),
        ({"prompts": ["a"]}, "prompts"),
        ({"prompts": {"a": 1}}, "prompts"),
        ({"default_prompt": None}, "default_prompt"),
        ({"pools_prompt": 1}, "pools_prompt"),
    ],
)
def test_unsupported_settings_of_rows_are_refused(
    changed: dict[str, Any], reason: str, library: ctypes.CDLL, files: tuple[Path, Path]
) -> None:
    good = {"task": "zero-shot-classification", "max_length": 32, "widths": [16, 32]}
    NativeRows(library, files[1], good).close()
    with pytest.raises(ValueError, match=reason):
        NativeRows(library, files[1], good | changed)


# Settings of a request


PARAMETERS: tuple[tuple[str, Any], ...] = (
    *(("top_k", value) for value in (1, 3, 0, -(2**63), 2**40, True, "1", 1.0)),
    *itertools.product(("multi_label", "raw_scores"), (True, False, 1, "true")),
    *(("dimensions", value) for value in (3, 0, 2**40, False, "3")),
    *itertools.product(("prompt", "prompt_name", "long"), ("é", "", 1)),
    *(("stride", value) for value in (3, 0, -1, -(2**63), 2**40, False, "3")),
    *(("topk", 1), ("é" * 61, "x"), ("漢" * 60, "x"), ("priority", "high"), ("triton_enable", 1), ("top", 0.5)),
)


PAIRS = tuple(itertools.permutations(PARAMETERS[::3], 2))
DTYPES: dict[str, Any] = {
    "top_k": np.int32,
    "long": np.object_,
    "stride": np.int32,
    "multi_label": bool,
    "raw_scores": bool,
    "dimensions": np.int32,
    "prompt_name": np.object_,
    "prompt": np.object_,
}
TENSORS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 3},
    {"top_k": 0},
    {"multi_label": True},
    {"raw_scores": False},
    {"dimensions": 3},
    {"dimensions": -1},
    {"stride": -1},
    {"long": b"mean"},
    {"prompt": "é".encode()},
)


@pytest.fixture(scope="module")
def step() -> Iterator[Any]:
    """The class of the Python step; it imports a module that exists only inside Triton."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
        yield importlib.import_module("hfx.python_backends.tokenize").TritonPythonModel


def settled(
    step: Any, encoder: Encoder, given: dict[str, Any], parameters: dict[str, Any], options: Iterable[str]
) -> dict[str, Any]:
    """Return the settings that the Python step takes from a request."""
    model, arrays = step(), dict(given)
    model.encoder = encoder
    model.settings = {name: DTYPES[name] for name in options}
    model._check(arrays)
    model._add_parameters(SimpleNamespace(parameters=lambda: json.dumps(parameters)), arrays)
    return {name: arrays[name] for name in model.settings if name in arrays}


def settled_natively(
    native: NativeRows, given: dict[str, Any], parameters: dict[str, Any], options: Iterable[str]
) -> dict[str, Any]:
    native.begin(given, parameters, options)
    native.settle()
    found = {name: native.values(name, DTYPES[name]) for name in options}
    return {name: array for name, array in found.items() if array.size}


one_kind = pytest.mark.parametrize("files", KINDS[:1], indirect=True)  # for what no tokenizer takes part in


@one_kind
@pytest.mark.parametrize("task", TASKS)
def test_settings_of_a_request_are_those_of_the_python_step(task: str, both: Any, step: Any) -> None:
    encoder, native = both(Settings(task, 40, (40,)))
    texts: dict[str, Any] = {name: strings("a", "b") for name in encoder.fields}
    refused, options = set(), [name for name in tasks.TASKS[task].options if name in DTYPES]
    fewer = [name for name in options if name != "prompt"]
    for tensor, some in itertools.product(TENSORS, [(), *itertools.combinations(PARAMETERS, 1), *PAIRS]):
        given = {name: np.full((2, 1), value, DTYPES[name]) for name, value in tensor.items()}
        for known in (options, fewer):
            if not given.keys() <= set(known):
                continue
            arguments = texts | given, dict(some), known
            expected = outcome(lambda: settled(step, encoder, *arguments))  # noqa: B023
            assert outcome(lambda: settled_natively(native, *arguments)) == expected  # noqa: B023
            refused |= {expected} if isinstance(expected, str) else set()
    assert len(refused) > 5


@one_kind
@pytest.mark.parametrize("task", TASKS)
def test_a_request_without_its_texts_is_refused(task: str, both: Any, step: Any) -> None:
    encoder, native = both(Settings(task, 40, (40,)))
    for some in itertools.combinations(encoder.fields, len(encoder.fields) - 1):
        given: dict[str, Any] = {name: strings("a") for name in some} or {"top_k": np.ones((1, 1), np.int32)}
        expected = outcome(lambda: settled(step, encoder, given, {}, DTYPES))  # noqa: B023
        if (
            expected != "candidate_labels is missing"
        ):  # which C++ doesn't tell from no labels, as Triton refuses it first
            assert outcome(lambda: settled_natively(native, given, {}, DTYPES)) == expected  # noqa: B023
