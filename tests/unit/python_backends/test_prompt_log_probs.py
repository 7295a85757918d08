"""Log-probabilities of prompts: those of transformers, the same bits beside other requests, and within their bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.native import library
from hfx.python_backends.checks import Ids
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.plan import SCORED, Run, Span
from hfx.python_backends.engine.prefix_cache import BLOCK
from hfx.python_backends.engine.request import MOST_SCORED, Event, Request, Settings, check
from hfx.python_backends.engine.spec import read_spec
from hfx.python_backends.errors import DoesNotFit, InvalidRequest
from hfx.python_backends.generation.detokenizer import Detokenizer
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.generation.pieces import Piece, SequenceReader, join_texts
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.generation_tokenizers import KINDS, LINES
from tests.rigs.engine.engine_toys import MAX_LENGTH
from tests.rigs.engine.generation_models import TEXT, facts, ids_of, letters, write_model
from tests.rigs.engine.watched_engine import accept, finish, make_core, open_engine, plans_of
from tests.rigs.machine.processors import HAS_NATIVE, LEVELS

POSITIONS, VOCABULARY = 300, 160
FAMILIES = ("gpt2", "qwen2", "neox", "gemma", "opt")
# Up to two parts, with all remainders that a part's first token depends on.
LENGTHS = (1, 2, 3, SCORED - 1, SCORED, SCORED + 1, SCORED + 2, SCORED + 17, 2 * SCORED, 2 * SCORED + 1, 200)


@cache
def model(family: str) -> Any:
    """Return a model of random weights, wide enough that tokens vary."""
    import torch

    torch.manual_seed(7)
    positions = "n_positions" if family == "gpt2" else "max_position_embeddings"
    made = tiny_generators.build(family, vocab_size=VOCABULARY, **{positions: POSITIONS})
    with torch.no_grad():
        for weights in made.parameters():
            if weights.ndim == 2:
                weights.normal_(0, 0.3)
    return made.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A function that returns a family's engine folder in a format."""

    @cache
    def write(family: str, form: str) -> Path:
        root = tmp_path_factory.mktemp(family)
        checkpoint = tiny_generators.save(root / "checkpoint", model(family))
        operators = library() if HAS_NATIVE and form != "fp32" else None
        write_engine_folder(checkpoint, root / "engine", FORMATS[form], LEVELS, library=operators)
        return root / "engine"

    return write


def prompt_of(length: int, seed: int = 0) -> Ids:
    return tuple(np.random.default_rng(1000 * seed + length).integers(2, VOCABULARY, length).tolist())


def ask(prompt: Ids, alternatives: int | None = 3, **settings: Any) -> Request:
    return Request(prompt, Settings(**{"max_tokens": 3, "eos_ids": (1,), **settings}, prompt_log_probs=alternatives))


def scores(events: list[Event]) -> list[tuple[int, float, Any]]:
    """Return the prompt's tokens, which must come before all others."""
    first = [event for event in events if event.of_prompt]
    assert events[: len(first)] == first and all(event.index == 0 for event in first)
    return [row for event in first for row in zip(event.ids, event.log_probs or (), event.top, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_of_prompts_are_those_of_transformers(family: str, folder: Callable[..., Path]) -> None:
    import torch

    with Engine.open(folder(family, "fp32"), slots=3, threads=1) as engine:
        for length in LENGTHS:
            prompt = prompt_of(length)
            with torch.no_grad():
                expected = model(family)(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
            rows = scores(list(engine.submit(ask(prompt))))
            assert [row[0] for row in rows] == list(prompt)
            assert rows[0][1:] == (0.0, ())
            for (token, log_prob, top), own in zip(rows[1:], expected, strict=False):
                assert log_prob == pytest.approx(float(own[token]), abs=1e-4)
                assert [number for number, _ in top] == own.topk(3).indices.tolist()
                assert [value for _, value in top] == pytest.approx(own.topk(3).values.tolist(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fp32", "int8"])
def test_answers_are_the_same_with_and_without_and_beside_other_requests(
    form: str, folder: Callable[..., Path]
) -> None:
    """The prefix cache is read and written by the requests between, which share the prompts' beginnings."""
    path = folder("gpt2", form)
    prompts = [prompt_of(length) for length in LENGTHS]
    with Engine.open(path, slots=3, threads=1, prefix_cache_mb=0) as engine:
        alone = [list(engine.submit(ask(prompt))) for prompt in prompts]
        plain = [list(engine.submit(ask(prompt, None))) for prompt in prompts]
    assert [[event for event in events if not event.of_prompt] for events in alone] == plain
    with Engine.open(path, slots=3, threads=1) as engine:
        for _ in range(3):
            jobs = [engine.submit(ask(prompt, wanted)) for prompt in prompts for wanted in (3, None)]
            events = [list(job) for job in jobs]
            assert events[::2] == alone and events[1::2] == plain
        assert engine.stats().cached_tokens > 0


def test_a_prompt_is_run_in_parts_from_its_beginning_and_its_blocks_are_saved(folder: Callable[..., Path]) -> None:
    core, prompt = make_core(folder("gpt2", "fp32"), 2), prompt_of(150)
    for _ in range(2):
        accept(core, ask(prompt, None))
        finish(core)
    assert core.scheduler.prefixes.cached(prompt) == 2 * BLOCK
    plans_of(core).clear()
    accept(core, ask(prompt))
    finish(core)
    spans = [span for plan in plans_of(core) if isinstance(plan, Run) for span in plan.spans]
    assert [(span.start, span.end, span.loads, span.scored) for span in spans] == [
        (0, 64, (), True), (64, 128, (), True), (128, 150, (), True)
    ]  # fmt: skip
    assert not Span((1, 2), rows=(0,), scored=True).is_whole
    fresh = make_core(folder("gpt2", "fp32"), 2)
    for _ in range(2):
        accept(fresh, ask(prompt))
        finish(fresh)
    assert fresh.scheduler.prefixes.cached(prompt) == 2 * BLOCK


def test_several_texts_and_beams_have_the_prompt_once(folder: Callable[..., Path]) -> None:
    prompt = prompt_of(70)
    with open_engine(folder("gpt2", "fp32"), slots=4) as engine:
        expected = scores(list(engine.submit(ask(prompt))))
        for own in ({"num_beams": 3}, {"do_sample": True, "seed": 1, "num_return_sequences": 3}):
            with_scores, without = (list(engine.submit(ask(prompt, count, **own))) for count in (3, None))
            assert scores(with_scores) == expected
            assert [event for event in with_scores if not event.of_prompt] == without


def test_a_cancelled_prompt_frees_its_rows(folder: Callable[..., Path]) -> None:
    with open_engine(folder("gpt2", "fp32"), slots=1) as engine:
        jobs = [engine.submit(ask(prompt_of(250, seed))) for seed in range(4)]
        for job in jobs:
            job.cancel()
        assert all(event.finish_reason == "cancelled" for job in jobs for event in job.result(60))
        assert len(scores(list(engine.submit(ask(prompt_of(65)))))) == 65
        assert engine.stats().slots_free == 1


def test_the_number_of_log_probabilities_is_bounded(tmp_path: Path) -> None:
    longest = MOST_SCORED // 21
    spec = replace(read_spec(write_model(tmp_path) / "cpu"), max_length=longest + 10)
    check(ask((1,) * longest, 20), spec, 1)
    check(ask((1,) * (longest + 1), 19), spec, 1)
    with pytest.raises(DoesNotFit, match="ask for fewer alternatives"):
        check(ask((1,) * (longest + 1), 20), spec, 1)


# Of a generator


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    root = tmp_path_factory.mktemp("decoder")
    small = tiny_generators.build("gpt2", vocab_size=len(TEXT), n_positions=MAX_LENGTH)
    write_engine_folder(tiny_generators.save(root / "checkpoint", small), root / "1" / "cpu", FORMATS["fp32"], LEVELS)
    letters().save(str(root / "1" / "tokenizer.json"))
    (root / "1" / "generation.json").write_text(json.dumps(facts(eos_token_ids=[0], special_token_ids=[0])))
    with TextGenerator.open(root / "1", slots=4, threads=1) as generator:
        yield generator


def test_a_graph_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    with TextGenerator.open(write_model(tmp_path), slots=4, threads=1) as generator:
        with pytest.raises(InvalidRequest, match="export the model again"):
            generator.generate("cat", prompt_logprobs=0)
        assert generator.generate("cat", max_tokens=2).output_tokens == 2


@pytest.mark.parametrize("count", [0, 3])
def test_pieces_have_the_tokens_of_the_prompt_before_the_text(decoder: TextGenerator, count: int) -> None:
    whole = decoder.generate("cat", max_tokens=8, prompt_logprobs=count, logprobs=1)
    plain = decoder.generate("cat", max_tokens=8, logprobs=1)
    assert (whole.text, whole.tokens, plain.prompt_tokens) == (plain.text, plain.tokens, ())
    assert [token.id for token in whole.prompt_tokens] == ids_of("cat")
    assert [token.text for token in whole.prompt_tokens] == ["c", "a", "t"]
    assert [len(token.top) for token in whole.prompt_tokens] == [0, count, count]
    assert all(token.text == TEXT[token.id] for each in whole.prompt_tokens for token in each.top if token.id)
    pieces = list(decoder.stream("cat", max_tokens=8, prompt_logprobs=count, logprobs=1))
    assert (pieces[0].text, pieces[0].prompt_tokens) == ("", whole.prompt_tokens)
    assert join_texts(pieces) == (whole,)


def test_token_ids_are_a_prompt(decoder: TextGenerator) -> None:
    expected = decoder.generate("cat", prompt_logprobs=2, max_tokens=8)
    assert decoder.generate("", prompt_token_ids=ids_of("cat"), prompt_logprobs=2, max_tokens=8) == expected
    full = decoder.configuration.max_length
    assert decoder.generate("", prompt_token_ids=[1] * (full - 1)).output_tokens == 1


@pytest.mark.parametrize(
    ("text", "fields", "field"),
    [
        ("cat", {"prompt_token_ids": [1]}, "text_input"),
        ("", {"prompt_token_ids": [len(TEXT)]}, "prompt_token_ids"),
        ("", {"prompt_token_ids": [-1]}, "prompt_token_ids"),
        ("", {"prompt_token_ids": [1.5]}, "prompt_token_ids"),
        ("", {"prompt_token_ids": [1], "add_special_tokens": False}, "add_special_tokens"),
        ("", {"prompt_token_ids": [1], "long": "truncate"}, "long"),
        ("cat", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("cat", {"prompt_logprobs": -1}, "prompt_logprobs"),
    ],
)
def test_a_contradiction_is_refused_by_name(
    text: str, fields: dict[str, Any], field: str, decoder: TextGenerator
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoder.generate(text, **fields)
    assert caught.value.field == field


def test_token_ids_are_never_cut(decoder: TextGenerator) -> None:
    full = decoder.configuration.max_length
    for ids, own in ((full, {}), (full - 2, {"max_tokens": 3})):
        with pytest.raises(DoesNotFit):
            decoder.generate("", prompt_token_ids=[1] * ids, **own)


def test_an_encoder_has_no_log_probabilities_of_its_text_but_takes_ids(tmp_path: Path) -> None:
    with TextGenerator.open(write_model(tmp_path, max_source=48), slots=4, threads=1) as summarizer:
        with pytest.raises(InvalidRequest, match="encoder reads the text") as caught:
            summarizer.generate("cat", prompt_logprobs=0)
        assert caught.value.field == "prompt_logprobs"
        expected = summarizer.generate("cat", max_tokens=5)
        assert summarizer.generate("", prompt_token_ids=ids_of("cat"), max_tokens=5) == expected


def test_tables_of_prompts_are_filled_up_where_a_token_has_no_alternatives(decoder: TextGenerator) -> None:
    outputs = decoder.generate("ca", max_tokens=1, prompt_logprobs=2).outputs()
    assert outputs["prompt_token_ids"][0] == [ids_of("c")[0], -1, -1] and -1 not in outputs["prompt_token_ids"][1]
    assert outputs["prompt_log_probs"] == [row[0] for row in outputs["prompt_token_log_probs"]]
    assert not [name for name in Piece("").outputs() if name.startswith("prompt_")]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unknown"])
def test_the_texts_of_a_prompts_tokens_are_together_its_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    for line in LINES:
        ids = tokenizer(line, add_special_tokens=False)["input_ids"]
        event = Event(0, tuple(ids), log_probs=(-1.0,) * len(ids), of_prompt=True)
        tokens = SequenceReader(detokenizer).tokens(event, 0, len(ids))
        raw = b"".join(token.raw for token in tokens if not token.special)
        assert raw.decode("utf-8", "replace") == detokenizer.decode(ids), line
