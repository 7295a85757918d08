"""Every family and switch compared with transformers in float32: ragged rows, beams, a cache filled with NaN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.native import library
from hfx.python_backends.engine.spec import NATIVE, ONNXRUNTIME
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import graph_rows
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = pytest.mark.slow

LENGTHS = (5, 31, 1, 12)  # of prompts and sources, in one ragged batch
STEPS = 12
# Of the largest logit: both sides add up a few dozen float32 products in other orders.
TOLERANCE = 5e-6
# Where caches are in float16, whose step is 2^-11 of a number: 6e-4 was measured (Qwen3, whose normed heads give large
# scores).
TOLERANCE_OF_HALVES = 1e-3

DECODERS = tiny_generators.DECODERS
ENCODER_DECODERS = [name for name in tiny_generators.GENERATORS if name not in DECODERS]


@pytest.fixture(params=(ONNXRUNTIME, NATIVE))
def runtime(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def tokens(rows: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, tiny_generators.VOCABULARY - 20, length).tolist() for length in rows]


@cache
def built(name: str) -> Any:
    return tiny_generators.build(name)


def exported(folder: Path, name: str, runtime: str) -> tuple[Any, Path]:
    if runtime == NATIVE and not HAS_NATIVE:
        pytest.skip("this processor has no VNNI")
    model, operators = built(name), library() if runtime == NATIVE else None
    write_engine_folder(tiny_generators.save(folder, model), folder / "engine", FORMATS["fp32"], 127, library=operators)
    return model, folder / "engine"


def assert_close(got: NDArray[Any], want: NDArray[Any], runtime: str, name: str) -> None:
    is_half = runtime == NATIVE and "t5" not in name
    assert np.abs(got - want).max() <= (TOLERANCE_OF_HALVES if is_half else TOLERANCE) * np.abs(want).max()


@cache
def greedy(name: str) -> list[list[int]]:
    """Return transformers' greedy continuations of the ragged rows; a decoder's begin with their prompts."""
    return [_greedy(built(name), row) for row in tokens(LENGTHS)]


def _greedy(model: Any, ids: list[int]) -> list[int]:
    import torch

    # Without its cache, which has too few layers where a T5's decoder is deeper than its encoder.
    options = {"do_sample": False, "num_beams": 1, "eos_token_id": None, "use_cache": False}
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
    rows = model.generate(**inputs, max_new_tokens=STEPS, min_new_tokens=STEPS, **options)
    return [int(token) for token in rows[0]]


def in_torch(model: Any, **ids: list[int]) -> NDArray[Any]:
    """Return transformers' logits [tokens, vocabulary] of one row."""
    import torch

    with torch.no_grad():
        logits: NDArray[Any] = model(**{name: torch.tensor([row]) for name, row in ids.items()}).logits[0].numpy()
    return logits


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_has_the_logits_and_greedy_tokens_of_transformers(tmp_path: Path, runtime: str, name: str) -> None:
    model, folder = exported(tmp_path, name, runtime)
    prompts = tokens(LENGTHS)
    answers = [row[len(prompt) :] for row, prompt in zip(greedy(name), prompts, strict=True)]
    logits = graph_rows.decoded(folder, prompts, answers, runtime=runtime)
    for got, prompt, answer in zip(logits, prompts, answers, strict=True):
        assert_close(got, in_torch(model, input_ids=[*prompt, *answer])[len(prompt) - 1 : -1], runtime, name)
        assert got.argmax(-1).tolist() == answer


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_has_the_logits_and_greedy_tokens_of_transformers(
    tmp_path: Path, runtime: str, name: str
) -> None:
    model, folder = exported(tmp_path, name, runtime)
    sources = tokens(LENGTHS)
    answers = greedy(name)
    logits = graph_rows.decoded(folder, sources, [answer[:-1] for answer in answers], runtime=runtime)
    for got, source, answer in zip(logits, sources, answers, strict=True):
        assert_close(got, in_torch(model, input_ids=source, decoder_input_ids=answer[:-1]), runtime, name)
        assert got.argmax(-1).tolist() == answer[1:]


@pytest.mark.parametrize("name", ["m2m", "m2m-unscaled"])
def test_pad_tokens_in_texts_and_answers_have_no_position(tmp_path: Path, runtime: str, name: str) -> None:
    """M2M100's source is counted without them; token by token, as it generates, what follows one is."""
    import torch

    model, folder = exported(tmp_path, name, runtime)
    pad = model.config.pad_token_id
    sources = [[5, pad, 9, 30, pad, pad, 12], [pad, 8]]
    answers = [[2, 7, pad, 11, pad, pad, 13], [2, pad, 5, 6, 7, 8, 9]]
    logits = graph_rows.decoded(folder, sources, answers, runtime=runtime)
    for got, source, answer in zip(logits, sources, answers, strict=True):
        cache, steps = None, []
        with torch.no_grad():
            for token in answer:
                inputs = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([[token]])}
                found = model(**inputs, past_key_values=cache, use_cache=True)
                cache = found.past_key_values
                steps.append(found.logits[0, 0].numpy())
        assert_close(got, np.stack(steps), runtime, name)


@pytest.mark.parametrize("beams", [2, 3, 8])
@pytest.mark.parametrize("name", ["bart", "t5-gated"])
def test_beams_of_one_source_have_the_logits_of_transformers(
    tmp_path: Path, runtime: str, name: str, beams: int
) -> None:
    model, folder = exported(tmp_path, name, runtime)
    sources, answers = tokens(LENGTHS), tokens([6] * beams * len(LENGTHS), seed=1)
    logits = graph_rows.decoded(folder, sources, answers, beams, runtime)
    for index, answer in enumerate(answers):
        assert_close(
            logits[index], in_torch(model, input_ids=sources[index // beams], decoder_input_ids=answer), runtime, name
        )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_prompt_in_two_chunks_has_the_logits_of_the_whole(tmp_path: Path, runtime: str, name: str) -> None:
    model, folder = exported(tmp_path, name, runtime)
    (prompt,) = tokens([40])
    row = graph_rows.Rows(folder, 1, runtime=runtime)
    row.chunk(prompt[:16])
    assert_close(row.chunk(prompt[16:])[0], in_torch(model, input_ids=prompt)[-1], runtime, name)


def test_answers_longer_than_the_bias_table_keep_its_end(tmp_path: Path, runtime: str) -> None:
    model, folder = exported(tmp_path, "t5", runtime)
    (source,), (answer,) = tokens([60]), tokens([60], seed=2)
    (got,) = graph_rows.decoded(folder, [source], [answer], runtime=runtime)
    assert_close(got, in_torch(model, input_ids=source, decoder_input_ids=answer), runtime, "t5")
