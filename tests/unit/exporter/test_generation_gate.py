"""The arithmetic of the gate: ties, limits of figures, and the choice of texts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.errors import VerificationFailed
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.generation.gate import LIMITS, Comparison, Limits, failures, judge, limits
from hfx.exporter.generation.measure import (
    NOISE,
    ROWS,
    SLOTS,
    Figures,
    Forced,
    Long,
    Whole,
    is_tie,
    measure_beams,
    measure_forced,
    measure_greedy,
    open_engine,
    open_rows,
)
from hfx.exporter.generation.prompts import Effort, Prompt, Reader, choose_prompts
from hfx.exporter.generation.reference import PLAIN, Positions, Work, make_reference
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import open_checkpoint
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Settings
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.checkpoints import generator_checkpoints

FORCED = Forced("bundled", 1000, 1.0, 0.0, None, 1e-5, 1e-6, 1000, 1e-2, 2e-2)
WHOLE = Whole(128, 1.0, 0.0, 24, 0)
LONG = Long(3, 1015, 400, 1.0, 0.0, 1e-2, 2e-2, 1e-6)
FIGURES = Figures(FORCED, WHOLE, WHOLE, 4, 1e-5, LONG)
NAN = float("nan")


def figures(
    forced: dict[str, Any] | None = None, greedy: Any = None, beams: Any = None, long: dict[str, Any] | None = None
) -> Figures:
    return replace(
        FIGURES,
        forced=replace(FORCED, **(forced or {})),
        greedy=replace(WHOLE, **(greedy or {})),
        beams=replace(WHOLE, **(beams or {})),
        long=replace(LONG, **(long or {})),
    )


@pytest.mark.parametrize(
    ("precision", "found", "said"),
    [
        ("fp32", figures(greedy={"same": 127 / 128}), "greedy: 0.9922"),
        ("fp32", figures(beams={"same": 0.98}), "beams: 0.9800"),
        ("fp32", figures(forced={"delta_share": 2e-3}), "largest logit"),
        ("fp32", figures(forced={"delta": NAN}), "finite"),
        ("fp32", figures(forced={"agreement": 0.99}), "token agreement 0.9900"),
        ("fp32", figures(greedy={"batch_variants": 1}), "1 of 24 texts have other log-probabilities"),
        ("int8", figures(forced={"agreement": 0.9899}), "token agreement 0.9899"),
        ("int8", figures(forced={"agreement": NAN}), "token agreement"),
        ("int8", figures(beams={"batch_variants": 2}), "beams: 2 of 24"),
        ("int4", figures(forced={"agreement": 0.98}), "token agreement"),
        ("fp16", figures(forced={"agreement": 0.98}), "token agreement"),
        ("fp32", figures(long={"delta_share": 2e-3}), "2.00e-03 of the largest logit at 400 positions"),
        ("fp32", figures(long={"error": 3e-2}), "error of logits 3.00e-02 .* up to 1015 tokens, at most 2.00e-02"),
        ("int8", figures(long={"error": 3e-2}), "error of logits"),
        ("int4", figures(forced={"error": 0.1}, long={"error": 0.21}), "at most 2.00e-01"),
        ("int8", figures(long={"error": NAN}), "error of logits nan"),
        ("int8", figures(long={"worst": 0.09}), "worst error of logits 9.00e-02 .*, at most 8.00e-02"),
    ],
)
def test_a_figure_beyond_its_limit_fails_with_its_value(precision: Any, found: Figures, said: str) -> None:
    with pytest.raises(VerificationFailed, match=said):
        judge("it", found, LIMITS[precision])


@pytest.mark.parametrize(
    ("precision", "found"),
    [
        *((precision, FIGURES) for precision in LIMITS),
        ("fp32", figures(greedy={"same": 120 / 128, "ties": 8 / 128})),
        ("fp32", figures(beams={"same": 0.99})),
        ("int8", figures(forced={"agreement": 0.99}, greedy={"same": 0.5})),
        ("int8", replace(FIGURES, beams=None)),
        ("int8", replace(FIGURES, long=None)),
        ("int8", figures(forced={"error": 0.1}, long={"error": 0.19, "delta_share": 0.1, "agreement": 0.9})),
    ],
)
def test_figures_within_their_limits_pass(precision: Any, found: Figures) -> None:
    judge("it", found, LIMITS[precision])


def test_figures_at_their_limits_pass() -> None:
    exact = figures(
        forced={"agreement": 0.999, "delta_share": NOISE, "error": 1e-3, "worst": 1e-3},
        greedy={"same": 0.7, "ties": 0.3},
        beams={"same": 0.9, "ties": 0.09},
        long={"error": 0.02, "worst": 0.02, "delta_share": NOISE},
    )
    assert failures(exact, LIMITS["fp32"]) == []
    assert len(failures(replace(exact, long=replace(LONG, error=0.0201, worst=0.0201)), LIMITS["int8"])) == 2
    grown = figures(forced={"error": 0.1, "worst": 0.1}, long={"error": 0.2, "worst": 0.4})
    assert failures(grown, LIMITS["int8"]) == []
    assert len(failures(replace(grown, long=replace(LONG, error=0.201, worst=0.401)), LIMITS["int8"])) == 2


def test_a_limit_that_a_precision_does_not_have_is_not_set_by_the_user() -> None:
    assert limits("int8", 0.05) == Limits(agreement=0.95, greedy=None, beams=None, delta=None, batch_variant=0)
    assert limits("fp32", 0.05) == Limits(agreement=0.95, greedy=0.95, beams=0.95, delta=NOISE, batch_variant=0)
    assert limits("fp16", None) == LIMITS["fp16"] == Limits(agreement=0.99, batch_variant=None)


def test_the_user_may_accept_more_tokens_but_not_other_ones_in_another_batch() -> None:
    lax = limits("int8", 0.05)
    assert failures(figures(forced={"agreement": 0.95}), lax) == []
    assert failures(figures(greedy={"batch_variants": 1}), lax)
    assert failures(figures(greedy={"batch_variants": 1}), limits("fp32", None))
    assert failures(figures(greedy={"batch_variants": 1}), limits("fp32", None, named=True)) == []
    assert failures(figures(greedy={"same": 0.96}), limits("fp32", 0.05)) == []
    assert limits("int8", 0.0).agreement == 1.0


def test_the_manifest_has_the_figures_of_the_runtime_that_serves_and_of_the_reserve() -> None:
    both = {"native": FIGURES, "onnxruntime": figures(forced={"agreement": 0.995})}
    made = Comparison("cpu", "int8", FORMATS["int8"], provider="CPU", figures=both, limits={"agreement": 0.99})
    common = {"precision": "int8", "provider": "CPU", "limits": {"agreement": 0.99}}
    serving = {**common, "runtime": "native", **FIGURES.as_json()}
    reserve = {"reserve": {"onnxruntime": both["onnxruntime"].as_json()}}
    assert made.parity(None) == {**serving, **reserve}
    assert made.parity({"same": 1}) == {**serving, **reserve, "texts": {"same": 1}}
    assert replace(made, figures={"native": FIGURES}).parity(None) == serving
    assert made.served == "native" and made.choice == FORMATS["int8"].as_json()
    tried = ({"linear": "int4"},)
    assert replace(made, tried=tried).choice == {**FORMATS["int8"].as_json(), "tried": [{"linear": "int4"}]}


def test_files_for_gpus_that_could_not_run_here_are_not_verified() -> None:
    made = Comparison("gpu", "fp16", FORMATS["fp16"], provider="CPU", refusal="there is no GPU")
    assert made.parity(None) == {"precision": "fp16", "provider": "CPU", "limits": {}, "unverified": "there is no GPU"}
    assert made.served is None
    ran = replace(made, provider="CPU", figures={"onnxruntime": FIGURES})
    assert ran.served is None and replace(ran, provider="CUDA").served == "onnxruntime"


POSITIONS = Positions(
    np.array([[5, 7, 9], [1, 2, 3]]), np.array([[2.0, 1.99999, 0.5], [3.0, 2.0, 1.0]], np.float32), {}
)


@pytest.mark.parametrize(
    ("position", "first", "second", "tie"),
    [
        (0, 5, 7, True),
        (0, 7, 5, True),
        (0, 5, 5, False),  # no difference
        (0, 5, 9, False),
        (0, 5, 11, False),  # not among the best
        (1, 1, 2, False),
    ],
)
def test_two_different_best_tokens_of_equal_score_are_a_tie(position: int, first: int, second: int, tie: bool) -> None:
    assert is_tie(POSITIONS, position, first, second, 1e-4) is tie


# Which texts are continued

EFFORT = Effort(texts=6, tokens=4, beam_texts=4, beam_tokens=4, prompt_tokens=10, long_texts=1, alone=2)


def reader(longest: int = 40, prefix: str = "") -> Reader:
    return Reader(generator_checkpoints.tokenizer(), prefix, longest)


def test_own_texts_come_first_and_bundled_texts_fill_the_rest() -> None:
    chosen = choose_prompts(reader(), ["mine", "mine too"], [f"text {c}" for c in "abcdefgh"], EFFORT)
    assert [prompt.text for prompt in chosen[:2]] == ["mine", "mine too"]
    assert [prompt.own for prompt in chosen] == [True, True, False, False, False, False, False]
    assert len(chosen[-1].ids) > EFFORT.prompt_tokens  # the long one
    own = choose_prompts(reader(), [f"own {c}" for c in "abcdefgh"], ["bundled"], EFFORT)
    assert [prompt.own for prompt in own] == [True] * 6 + [False]


def test_texts_are_cut_between_tokens_and_never_twice() -> None:
    chosen = choose_prompts(reader(longest=10), ["a" * 50, "a" * 60, "", " ", "b"], [], EFFORT)
    assert [prompt.text for prompt in chosen] == ["a" * 10, "b"]
    assert [len(prompt.ids) for prompt in chosen] == [10, 1]


def test_a_prefix_is_part_of_the_prompt_but_not_of_its_text() -> None:
    chosen = choose_prompts(reader(longest=10, prefix="say "), ["abcdefghijk"], [], EFFORT)
    assert [(prompt.text, len(prompt.ids)) for prompt in chosen] == [("abcdef", 10)]


def test_bundled_texts_with_unknown_tokens_are_reduced_to_known_words() -> None:
    tokenizer = generator_checkpoints.tokenizer()
    tokenizer.unk_token = "a"  # the unknown token; no text with an "a" can be tokenized then
    chosen = choose_prompts(Reader(tokenizer, "", 40), [], ["one cat", "two dogs", "Ü"], EFFORT)
    assert [prompt.text for prompt in chosen[:2]] == ["one", "two dogs"]


# Real engines against real torch


@pytest.fixture(scope="module", params=generator_checkpoints.FAMILIES)
def torch_side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("gate")
    generator_checkpoints.save(folder / "checkpoint", request.param)
    plan = make_plan(open_checkpoint(str(folder / "checkpoint")), ExportOptions(name="m", repository=folder))
    tokenizer = generator_checkpoints.tokenizer()
    generator = TorchGenerator.open(plan, tokenizer)  # type: ignore[arg-type]
    words = ["one", "two cats", "a longer text than that", "x", "and on it goes", "zzz"]
    prompts = [Prompt(word, tuple(tokenizer(word)["input_ids"])) for word in words]
    write_engine_folder(plan.checkpoint, folder / "engine", FORMATS["fp32"], 127)
    work = Work(EFFORT, greedy=Settings(max_tokens=9), beams=Settings(num_beams=3, max_tokens=7, min_tokens=2))
    return plan, folder / "engine", make_reference(generator, prompts, work)


SESSION = SessionSettings(threads=1)


def forced(plan: Any, engine: Path, reference: Any) -> Forced:
    with closing(open_rows(read_spec(engine), ROWS, SESSION)) as runner:
        return measure_forced(runner, reference, plan.settings.decoder_start_token_ids)


def opened(folder: Path, reference: Any) -> Engine:
    spec = read_spec(folder)
    return open_engine(open_rows(spec, SLOTS, SESSION), spec, reference)


def settings(plan: Any, **changed: Any) -> Settings:
    start = plan.settings.decoder_start_token_ids
    eos = plan.settings.eos_token_ids
    return Settings(**{"max_tokens": 9, "eos_ids": eos, "decoder_prompt": start, **changed})


def test_every_position_agrees_in_fp32(torch_side: Any) -> None:
    plan, engine, reference = torch_side
    found = forced(plan, engine, reference)
    assert found.positions == sum(map(len, reference.greedy)) == found.rows
    assert found.agreement == 1.0
    assert found.delta_share < 1e-5


def test_a_different_best_token_counts_as_a_disagreement(torch_side: Any) -> None:
    plan, engine, reference = torch_side
    first = reference.positions[0]
    wrong = replace(first, best=np.roll(first.best, 1, axis=1), logits=np.roll(first.logits, 1, axis=1))
    changed = replace(reference, positions=(wrong, *reference.positions[1:]), noise=0.0)
    found = forced(plan, engine, changed)
    assert found.agreement == pytest.approx(1 - len(reference.greedy[0]) / found.positions)
    own = tuple(replace(prompt, own=index == 0) for index, prompt in enumerate(reference.prompts))
    judged = forced(plan, engine, replace(changed, prompts=own))
    assert (judged.texts, judged.agreement, judged.bundled_agreement) == ("verify-data", 0.0, 1.0)


def test_whole_texts_are_those_of_torch_alone_and_together(torch_side: Any) -> None:
    plan, folder, reference = torch_side
    beams = settings(plan, num_beams=3, max_tokens=7, min_tokens=2)
    with opened(folder, reference) as engine:
        assert measure_greedy(engine, reference, settings(plan), 3, 1e-4) == Whole(6, 1.0, 0.0, 3, 0)
        assert measure_beams(engine, reference, beams, 4, 1e-4) == Whole(4, 1.0, 0.0, 4, 0)


def test_texts_that_diverge_from_torch_are_counted(torch_side: Any) -> None:
    plan, folder, reference = torch_side
    other = (reference.greedy[0][0] + 1) % 29
    changed = replace(reference, greedy=((other, *reference.greedy[0][1:]), *reference.greedy[1:]))
    with opened(folder, reference) as engine:
        greedy = measure_greedy(engine, changed, settings(plan), 0, 1e-4)
    assert (greedy.same, greedy.alone) == (pytest.approx(5 / 6), 0)


def test_stop_strings_end_texts_and_not_the_ids_that_are_compared(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(generator_checkpoints.save(tmp_path / "c", "gpt2", {"stop_strings": ["ca", "t"]})))
    plan = make_plan(checkpoint, ExportOptions(name="m", repository=tmp_path))
    tokenizer = generator_checkpoints.tokenizer()
    generator = TorchGenerator.open(plan, tokenizer)  # type: ignore[arg-type]
    ((ids,), _) = generator.generate([tuple(tokenizer("cat")["input_ids"])], **PLAIN, max_new_tokens=4)
    assert ids
    assert [generator.text(tokenizer(text)["input_ids"]) for text in ("abcab", "dot", "dog")] == ["ab", "do", "dog"]


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_reusing_encoded_prompts_gives_the_same_continuations(family: str, tmp_path: Path) -> None:
    plan = make_plan(
        open_checkpoint(str(generator_checkpoints.save(tmp_path / "c", family))), ExportOptions(repository=tmp_path)
    )
    tokenizer = generator_checkpoints.tokenizer()
    generator = TorchGenerator.open(plan, tokenizer)  # type: ignore[arg-type]
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in ("one", "two cats", "a longer text than that")]
    sources = generator.encode(prompts)
    ids, _ = generator.generate(prompts, sources, **PLAIN, max_new_tokens=9)
    assert ids == generator.generate(prompts, **PLAIN, max_new_tokens=9)[0]
    alike = zip(generator.logits(prompts, ids, sources), generator.logits(prompts, ids), strict=True)
    for (index, known), (same, encoded) in alike:
        assert index == same
        np.testing.assert_allclose(known.numpy(), encoded.numpy(), atol=1e-5)
