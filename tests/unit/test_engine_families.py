"""The engine on the exporter's own graphs: small random GPT-2, BART and T5 answer as transformers' `generate` does.

Requests of all kinds run together, with prompts in chunks and rows that join and leave; each answer is the one that
transformers gives to the request alone.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.scheduler import Limits
from hfx.python_backends.engine.spec import RUNTIMES

from . import tiny_generators
from .engine_rig import open_engine

pytestmark = pytest.mark.slow

VOCABULARY = 160
LIMITS = Limits(chunk=40, prefill=96, encode=128)
FAMILIES = {
    "gpt2": {"n_positions": 256, "bos_token_id": 0, "eos_token_id": 1},
    "bart": {"max_position_embeddings": 256},
    "t5-gated": {"num_layers": 2, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
}


@dataclass(frozen=True)
class Question:
    """A prompt and keyword arguments that transformers and Settings both have."""

    prompt: tuple[int, ...]
    max_tokens: int
    options: dict[str, Any]


@cache
def model(family: str) -> Any:
    """Random weights, wide enough that tokens vary."""
    import torch

    torch.manual_seed(3)
    made = tiny_generators.build(family, vocab_size=VOCABULARY, **FAMILIES[family])
    with torch.no_grad():
        for weights in made.parameters():
            if weights.ndim == 2:
                weights.normal_(0, 0.35)
    made.generation_config.forced_eos_token_id = None
    return made.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Family -> engine folder."""

    @cache
    def write(family: str) -> Path:
        root = tmp_path_factory.mktemp(family)
        checkpoint = tiny_generators.save(root / "checkpoint", model(family))
        write_engine_folder(checkpoint, root / "engine", FORMATS["fp32"], levels=63, openvino=True)
        return root / "engine"

    return write


def questions(family: str, count: int) -> list[Question]:
    rng = random.Random(family)
    longest = 150 if family == "gpt2" else 70
    made = []
    for _ in range(count):
        options: dict[str, Any] = {"num_beams": rng.choice((1, 1, 2, 4)), "no_repeat_ngram_size": rng.choice((0, 3))}
        if options["num_beams"] > 1:
            options |= {"length_penalty": rng.choice((0.6, 2.0)), "early_stopping": rng.choice((True, False, "never"))}
            options["num_return_sequences"] = rng.randint(1, 2)
        prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, longest)))
        made.append(Question(prompt, rng.randint(1, 40), options))
    return made


def request_of(family: str, question: Question, **more: Any) -> Request:
    config = model(family).config
    start = () if family == "gpt2" else (config.decoder_start_token_id,)
    settings = {"max_tokens": question.max_tokens, "eos_ids": (config.eos_token_id,), "decoder_prompt": start}
    return Request(question.prompt, Settings(**settings, **question.options, **more))


def reference(family: str, question: Question) -> list[tuple[int, ...]]:
    """The new tokens of each returned sequence, up to and with the end token."""
    import torch

    torch.set_num_threads(1)
    asked, eos = model(family), model(family).config.eos_token_id
    prompt = torch.tensor([question.prompt])
    with torch.no_grad():
        rows = asked.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=question.max_tokens,
            do_sample=False,
            pad_token_id=eos,
            **question.options,
        ).tolist()
    start = len(question.prompt) if family == "gpt2" else 1
    return [_until(eos, tuple(row[start:])) for row in rows]


def _until(eos: int, ids: tuple[int, ...]) -> tuple[int, ...]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_requests_together_answer_as_transformers_does_one_by_one(family: str, runtime: str, folder: Any) -> None:
    asked = questions(family, 24)
    with open_engine(folder(family), slots=8, limits=LIMITS, runtime=runtime) as engine:
        assert engine.runtime == runtime
        handles = [engine.submit(request_of(family, question)) for question in asked]
        answers = [[each.ids for each in handle.result(120)] for handle in handles]
    assert answers == [reference(family, question) for question in asked]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_t5_by_its_old_name_reads_more_than_it_was_trained_with(runtime: str, tmp_path: Path) -> None:
    import torch

    asked, longest = model("t5-gated"), 100
    tiny_generators.save(tmp_path / "checkpoint", asked)
    file = tmp_path / "checkpoint" / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"architectures": ["T5WithLMHeadModel"], "n_positions": 16})
    )
    checkpoint = tiny_generators.checkpoint(file.parent)
    facts = write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp32"], 63, True, longest)
    assert (facts.max_length, facts.max_source) == (longest, longest)
    prompt = tuple((7 * at + 3) % VOCABULARY for at in range(longest))
    request = Request(prompt, Settings(max_tokens=90, min_tokens=90, eos_ids=(1,), decoder_prompt=(0,)))
    with open_engine(tmp_path / "engine", slots=2, limits=LIMITS, runtime=runtime) as engine:
        (answer,) = engine.submit(request).result(120)
    ids = torch.tensor([[0, *answer.ids]])
    with torch.no_grad():
        logits = asked(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0, :-1]
    logits[:, 1] = -torch.inf  # min_tokens
    chosen = logits[torch.arange(90), ids[0, 1:]]
    assert (logits.max(-1).values - chosen).max() < 1e-3  # a tie may go either way


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 5, "num_return_sequences": 2},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_the_unprocessed_logits_and_forced_tokens_have_them_too(
    family: str, way: str, runtime: str, folder: Any
) -> None:
    import torch

    prompt, start = ((5,), ()) if family == "gpt2" else ((5, 9, 30), (2,))
    options = {"max_tokens": 7, "decoder_prompt": start, "forced_bos_id": 13, "forced_eos_id": 1}
    options |= {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, **WAYS[way]}
    with open_engine(folder(family), slots=8, limits=LIMITS, runtime=runtime) as engine:
        answers = engine.submit(Request(prompt, Settings(**options, log_probs=True))).result(60)
        without = engine.submit(Request(prompt, Settings(**options))).result(60)
    assert [each.ids for each in answers] == [each.ids for each in without]
    for answer in answers:
        assert (len(answer.ids), answer.ids[0], answer.ids[-1]) == (7, 13, 1)
        ids = torch.tensor([[*(start or prompt), *answer.ids]])
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": ids} if start else {"input_ids": ids}
        with torch.no_grad():
            expected = model(family)(**inputs).logits[0, -8:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert answer.log_probs == pytest.approx(expected.tolist(), abs=1e-3)
