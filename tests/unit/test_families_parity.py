"""Every family and switch against transformers' own model in float32: ragged rows, beams, a poisoned cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine.spec import RUNTIMES
from tests.unit import graph_rows, tiny_generators

pytestmark = pytest.mark.slow

LENGTHS = (5, 31, 1, 12)  # of prompts and sources, in one ragged batch
STEPS = 12
# Of the largest logit: both sides add up a few dozen float32 products in other orders.
TOLERANCE = 5e-6

DECODERS = [name for name in tiny_generators.GENERATORS if name.startswith("gpt2")]
ENCODER_DECODERS = [name for name in tiny_generators.GENERATORS if not name.startswith("gpt2")]


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def tokens(rows: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, tiny_generators.VOCABULARY - 20, length).tolist() for length in rows]


def exported(folder: Path, name: str, runtime: str) -> tuple[Any, Path]:
    model, openvino = tiny_generators.build(name), runtime == "openvino"
    write_engine_folder(tiny_generators.save(folder, model), folder / "engine", FORMATS["fp32"], 127, openvino)
    return model, folder / "engine"


def assert_close(got: NDArray[Any], want: NDArray[Any]) -> None:
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def greedy(model: Any, **inputs: Any) -> list[int]:
    # Without its cache, which has too few layers where a T5's decoder is deeper than its encoder.
    options = {"do_sample": False, "num_beams": 1, "eos_token_id": None, "use_cache": False}
    found = model.generate(**inputs, max_new_tokens=STEPS, min_new_tokens=STEPS, **options)
    return [int(token) for token in found[0]]


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_has_the_logits_and_greedy_tokens_of_transformers(tmp_path: Path, runtime: str, name: str) -> None:
    import torch

    model, folder = exported(tmp_path, name, runtime)
    prompts = tokens(LENGTHS)
    wanted = [greedy(model, input_ids=torch.tensor([p]), attention_mask=torch.ones(1, len(p))) for p in prompts]
    answers = [row[len(prompt) :] for row, prompt in zip(wanted, prompts, strict=True)]
    logits = graph_rows.decoded(folder, prompts, answers, runtime=runtime)
    for index, (row, prompt) in enumerate(zip(wanted, prompts, strict=True)):
        got = logits[index]
        with torch.no_grad():
            want = model(torch.tensor([row])).logits[0, len(prompt) - 1 : -1].numpy()
        assert_close(got, want)
        assert got.argmax(-1).tolist() == row[len(prompt) :]


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_has_the_logits_and_greedy_tokens_of_transformers(
    tmp_path: Path, runtime: str, name: str
) -> None:
    import torch

    model, folder = exported(tmp_path, name, runtime)
    sources = tokens(LENGTHS)
    wanted = [greedy(model, input_ids=torch.tensor([source])) for source in sources]
    logits = graph_rows.decoded(folder, sources, [row[:-1] for row in wanted], runtime=runtime)
    for index, (row, source) in enumerate(zip(wanted, sources, strict=True)):
        got = logits[index]
        with torch.no_grad():
            want = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([row[:-1]])).logits[0].numpy()
        assert_close(got, want)
        assert got.argmax(-1).tolist() == row[1:]


@pytest.mark.parametrize("beams", [2, 3, 8])
@pytest.mark.parametrize("name", ["bart", "t5-gated"])
def test_beams_share_a_source_and_nothing_else(tmp_path: Path, runtime: str, name: str, beams: int) -> None:
    import torch

    model, folder = exported(tmp_path, name, runtime)
    sources, answers = tokens(LENGTHS), tokens([6] * beams * len(LENGTHS), seed=1)
    logits = graph_rows.decoded(folder, sources, answers, beams, runtime)
    for index, row in enumerate(answers):
        source = torch.tensor([sources[index // beams]])
        with torch.no_grad():
            want = model(input_ids=source, decoder_input_ids=torch.tensor([row])).logits[0].numpy()
        assert_close(logits[index], want)


def test_a_chunk_behind_a_past_continues_one_row(tmp_path: Path, runtime: str) -> None:
    import torch

    model, folder = exported(tmp_path, "gpt2", runtime)
    (prompt,) = tokens([40])
    row = graph_rows.Rows(folder, 1, runtime=runtime)
    row.chunk(prompt[:16])
    got = row.chunk(prompt[16:])
    with torch.no_grad():
        want = model(torch.tensor([prompt])).logits[0, -1].numpy()
    assert_close(got[0], want)


def test_answers_longer_than_the_bias_table_keep_its_end(tmp_path: Path, runtime: str) -> None:
    import torch

    model, folder = exported(tmp_path, "t5", runtime)
    sources, (answer,) = tokens([60]), tokens([60], seed=2)
    (got,) = graph_rows.decoded(folder, sources, [answer], runtime=runtime)
    with torch.no_grad():
        want = model(input_ids=torch.tensor(sources), decoder_input_ids=torch.tensor([answer])).logits[0].numpy()
    assert_close(got, want)
