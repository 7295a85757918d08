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
from tests.unit import graph_driver, openvino_driver, tiny_generators

LENGTHS = (5, 31, 1, 12)  # of prompts and sources, in one ragged batch
STEPS = 12
CAPACITY = 64
# Of the largest logit: both sides add up a few dozen float32 products in other orders.
TOLERANCE = 5e-6

DECODERS = [name for name in tiny_generators.GENERATORS if name.startswith("gpt2")]
ENCODER_DECODERS = [name for name in tiny_generators.GENERATORS if not name.startswith("gpt2")]

DRIVERS: dict[str, Any] = {"onnxruntime": graph_driver, "openvino": openvino_driver}


@pytest.fixture(params=DRIVERS)
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
    decoder = DRIVERS[runtime].Decoder(folder, len(prompts), CAPACITY)
    logits = [decoder.prefill(prompts)]
    logits += [
        decoder.step([row[len(p) + i] for row, p in zip(wanted, prompts, strict=True)]) for i in range(STEPS - 1)
    ]
    for index, (row, prompt) in enumerate(zip(wanted, prompts, strict=True)):
        got = np.stack([each[index] for each in logits])
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
    runner = DRIVERS[runtime].EncoderDecoder(folder, 1, CAPACITY, CAPACITY)
    runner.encode(sources)
    logits = [runner.step([row[i] for row in wanted]) for i in range(STEPS)]
    for index, (row, source) in enumerate(zip(wanted, sources, strict=True)):
        got = np.stack([each[index] for each in logits])
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
    runner = DRIVERS[runtime].EncoderDecoder(folder, beams, CAPACITY, CAPACITY)
    runner.encode(sources)
    logits = [runner.step([row[i] for row in answers]) for i in range(6)]
    for index, row in enumerate(answers):
        source = torch.tensor([sources[index // beams]])
        with torch.no_grad():
            want = model(input_ids=source, decoder_input_ids=torch.tensor([row])).logits[0].numpy()
        assert_close(np.stack([each[index] for each in logits]), want)


def test_a_chunk_behind_a_past_continues_one_row(tmp_path: Path, runtime: str) -> None:
    import torch

    model, folder = exported(tmp_path, "gpt2", runtime)
    (prompt,) = tokens([40])
    decoder = DRIVERS[runtime].Decoder(folder, 1, CAPACITY)
    decoder.prefill([prompt[:16]])
    got = decoder.chunk(prompt[16:])
    with torch.no_grad():
        want = model(torch.tensor([prompt])).logits[0, -1].numpy()
    assert_close(got[0], want)


def test_answers_longer_than_the_bias_table_keep_its_end(tmp_path: Path, runtime: str) -> None:
    import torch

    model, folder = exported(tmp_path, "t5", runtime)
    sources, (answer,) = tokens([60]), tokens([60], seed=2)
    runner = DRIVERS[runtime].EncoderDecoder(folder, 1, CAPACITY, CAPACITY)
    runner.encode(sources)
    got = np.concatenate([runner.step([token]) for token in answer])
    with torch.no_grad():
        want = model(input_ids=torch.tensor(sources), decoder_input_ids=torch.tensor([answer])).logits[0].numpy()
    assert_close(got, want)
