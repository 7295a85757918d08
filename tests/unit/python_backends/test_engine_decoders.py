"""Each decoder and switch in the engine compared with transformers' `generate`, in greedy, beam and sampled mode.

Prompts, some of them in parts, are longer than every window and than the lengths that scaled positions were trained
with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.native import library
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.spec import NATIVE, ONNXRUNTIME
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine.graph_rows import random_rows
from tests.rigs.engine.watched_engine import open_engine
from tests.rigs.machine.processors import HAS_NATIVE, LEVELS, int8_error
from tests.rigs.machine.tiers import full

pytestmark = pytest.mark.slow

# GPT-2 and plain Llamas are read by test_generation_exactness.py and test_families_parity.py.
NAMES = [name for name in tiny_generators.DECODERS if not name.startswith("gpt2")]
# One of each class, and those that change a product; the others change what float32 computes.
IN_INT8 = {
    "gemma", "gemma-untied", "neox", "neox-in-turn", "opt", "opt-350", "opt-plain", "llama", "llama-biased",
    "qwen2", "qwen3-tied", "ministral", "mistral", "smollm-window",
}  # fmt: skip
LENGTHS = (1, 7, 19, 33, 60)
TOKENS = 16
LIMITS = Limits(chunk=24, prefill=96, encode=128)  # the longest prompts are read in parts
RUNTIMES = [
    ONNXRUNTIME,
    pytest.param(NATIVE, marks=pytest.mark.skipif(not HAS_NATIVE, reason="native operators don't run here")),
]
PROMPTS = [tuple(row) for row in random_rows(LENGTHS, seed=4)]
BEAM_PROMPTS = PROMPTS[1::2]
END = 1
# Of a log-probability: native operators keep keys and values in float16, whose step is 2^-11 of a number.
TOLERANCES = {ONNXRUNTIME: 1e-3, NATIVE: 0.03}
ERROR = 0.04  # of a log-probability in int8, root mean square; 0.006 to 0.028 was measured
# Of the score of a beam, where two were nearer than float16 tells apart; of BEAM_PROMPTS, one at most.
NEAR, MOST_OTHERS = 0.05, 1


@cache
def model(name: str) -> Any:
    return tiny_generators.build(name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A function of a name and a precision that returns its engine folder.

    The folder has both runtimes, if this processor has both.
    """

    @cache
    def write(name: str, precision: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        checkpoint = tiny_generators.save(folder / "checkpoint", model(name))
        operators, levels = library() if HAS_NATIVE else None, LEVELS if precision == "int8" else 127
        write_engine_folder(checkpoint, folder / "engine", FORMATS[precision], levels, library=operators)
        return folder / "engine"

    return write


@cache
def generated(name: str, prompt: tuple[int, ...], beams: int) -> list[tuple[int, ...]]:
    """Return the new tokens of transformers' answers, the best first."""
    import torch

    ids = torch.tensor([prompt])
    found = model(name).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=beams,
        num_return_sequences=min(beams, 3), max_new_tokens=TOKENS, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    rows = found[:, len(prompt) :].tolist()
    return [tuple(row[: row.index(END) + 1] if END in row else row) for row in rows]


@lru_cache(100)
def all_log_probs(name: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Any:
    """Return torch's log-probabilities of all tokens at each place of an answer."""
    import torch

    with torch.no_grad():
        return model(name)(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)


def log_probs(name: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[float]:
    """Return torch's log-probabilities of the tokens of an answer."""
    rows = all_log_probs(name, prompt, answer)
    return [rows[place, token].item() for place, token in enumerate(answer)]


def scored(name: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
    """Return the score of a beam: the mean of its log-probabilities."""
    return sum(log_probs(name, prompt, answer)) / len(answer)


def answers(engine: Engine, prompts: Sequence[tuple[int, ...]] = PROMPTS, **settings: Any) -> list[tuple[Event, ...]]:
    options: dict[str, Any] = {"max_tokens": TOKENS, "eos_ids": (END,), "log_probs": True}
    asked = [engine.submit(Request(prompt, Settings(**options | settings))) for prompt in prompts]
    return [handle.result(120) for handle in asked]


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        *(full(name, ONNXRUNTIME) if name in IN_INT8 and HAS_NATIVE else (name, ONNXRUNTIME) for name in NAMES),
        *((name, NATIVE) if name in IN_INT8 else full(name, NATIVE) for name in NAMES if HAS_NATIVE),
    ],
)
def test_ids_and_log_probs_are_those_of_transformers(
    name: str, runtime: str, written: Callable[[str, str], Path]
) -> None:
    with open_engine(written(name, "fp32"), slots=16, limits=LIMITS, runtime=runtime) as engine:
        greedy, beams = answers(engine), answers(engine, BEAM_PROMPTS, num_beams=4, num_return_sequences=3)
        sampled = answers(engine, do_sample=True, seed=5, num_return_sequences=2)
    for prompt, (first,) in zip(PROMPTS, greedy, strict=True):
        assert first.ids == tuple(all_log_probs(name, prompt, first.ids).argmax(-1).tolist())
        assert len(first.ids) == TOKENS or first.ids[-1] == END
    assert [first.ids] == generated(name, PROMPTS[-1], 1)
    others = 0
    for prompt, several in zip(BEAM_PROMPTS, beams, strict=True):
        pairs = list(zip([each.ids for each in several], generated(name, prompt, 4), strict=True))
        if any(found != expected for found, expected in pairs):
            others += 1
            for each in pairs:
                found, expected = (scored(name, prompt, row) for row in each)
                assert found == pytest.approx(expected, abs=NEAR)
    assert others <= (MOST_OTHERS if runtime == NATIVE else 0)
    for prompt, found in zip(PROMPTS * 2, [*greedy, *sampled], strict=True):
        for each in found:
            assert each.log_probs == pytest.approx(log_probs(name, prompt, each.ids), abs=TOLERANCES[runtime])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", [name if name in IN_INT8 else full(name) for name in NAMES])
def test_int8_answers_are_near_and_the_same_in_any_batch(
    name: str, runtime: str, written: Callable[[str, str], Path]
) -> None:
    with open_engine(written(name, "int8"), slots=16, limits=LIMITS, runtime=runtime) as engine:
        together = answers(engine, do_sample=True, seed=5)
        assert [answers(engine, [prompt], do_sample=True, seed=5)[0] for prompt in PROMPTS] == together
    errors = [
        np.subtract(answer.log_probs, log_probs(name, prompt, answer.ids))
        for prompt, (answer,) in zip(PROMPTS, together, strict=True)
    ]
    assert np.sqrt(np.mean(np.concatenate(errors) ** 2)) < int8_error(ERROR)
