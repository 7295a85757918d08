"""Texts through the engine's toys, whose answers are worked out by hand (generation_models.py, engine_toys.py)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.engine.errors import (
    DeadlineExceeded,
    DoesNotFit,
    InvalidRequest,
    ModelDamaged,
    StepFailed,
)
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.generation.results import Piece, joined
from tests.unit.generation_models import answered, continued, write_model

SOURCE = 48
ENDLESS = 20_000
WAIT = 30.0


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    with TextGenerator.open(write_model(tmp_path_factory.mktemp("decoder")), slots=4, threads=1) as generator:
        yield generator


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A decoder that goes on until it is stopped: seconds of work, where nobody stops it."""
    folder = write_model(tmp_path_factory.mktemp("endless"), positions=2 * ENDLESS, eos_token_ids=[])
    with TextGenerator.open(folder, slots=4, threads=1) as generator:
        yield generator


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    folder = write_model(tmp_path_factory.mktemp("summarizer"), max_source=SOURCE)
    with TextGenerator.open(folder, slots=8, threads=1) as generator:
        yield generator


def is_idle(generator: TextGenerator) -> bool:
    """Whether no request is left soon."""
    end = time.monotonic() + WAIT
    while (stats := generator.engine.stats()).requests or stats.waiting:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# One text


@pytest.mark.parametrize("text", ["cat", "the dog sat", "z", "a b c d"])
def test_a_text_is_continued(decoder: TextGenerator, text: str) -> None:
    expected = continued(text, 12)
    found = decoder.generate(text, max_tokens=12)
    assert found.text == expected
    assert found.finish_reason == ("length" if len(expected) == 12 else "stop")
    assert (found.input_tokens, found.truncated_tokens) == (len(text), 0)
    assert found.output_tokens == min(12, len(expected) + 1)


def test_pieces_are_the_text(decoder: TextGenerator) -> None:
    pieces = list(decoder.stream("cat", max_tokens=12))
    assert joined(pieces) == (decoder.generate("cat", max_tokens=12),)
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert len(pieces) >= 5
    assert [piece.output_tokens for piece in pieces] == sorted(piece.output_tokens for piece in pieces)


def test_log_probs_are_one_a_token(decoder: TextGenerator) -> None:
    whole = decoder.generate("cat", max_tokens=8, return_log_probs=True)
    assert whole.log_probs is not None
    assert len(whole.log_probs) == whole.output_tokens
    assert all(one < 0 for one in whole.log_probs)
    assert joined(decoder.stream("cat", max_tokens=8, return_log_probs=True)) == (whole,)
    assert decoder.generate("cat", max_tokens=8).log_probs is None


# Stop strings


def test_a_text_ends_before_a_stop_string(decoder: TextGenerator) -> None:
    whole = continued("cat", 20)
    stop = whole[5:8]
    expected = whole[: whole.index(stop)]
    found = decoder.generate("cat", max_tokens=20, stop_words=["???", stop])
    assert (found.text, found.finish_reason) == (expected, "stop")
    assert found.output_tokens == len(expected) + 3
    assert joined(decoder.stream("cat", max_tokens=20, stop_words=["???", stop])) == (found,)


# Several texts


def test_several_samples_are_told_apart(decoder: TextGenerator) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "num_return_sequences": 3, "temperature": 2.0, "seed": 5}
    found = decoder.generate_all("cat", **fields)
    assert [one.index for one in found] == [0, 1, 2]
    assert len({one.text for one in found}) == 3
    assert joined(decoder.stream("cat", **fields)) == found
    assert decoder.generate_all("cat", **fields) == found


def test_a_stop_string_ends_only_its_own_sample(decoder: TextGenerator) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "num_return_sequences": 3, "temperature": 2.0, "seed": 5}
    whole = decoder.generate_all("cat", **fields)
    stop = whole[0].text[1:4]
    found = decoder.generate_all("cat", **fields, stop_words=[stop])
    assert [one.text for one in found] == [one.text.split(stop)[0] for one in whole]


def test_one_text_is_asked_for_where_one_is_returned(decoder: TextGenerator) -> None:
    with pytest.raises(InvalidRequest, match="generate_all"):
        decoder.generate("cat", num_return_sequences=2, temperature=1.0)


def test_many_texts_come_in_order(tmp_path: Path) -> None:
    texts = ["abcdefg"[: 1 + number % 7] * (1 + number % 3) for number in range(60)]
    with TextGenerator.open(write_model(tmp_path), slots=4, max_queue=3, threads=1) as generator:
        found = generator.generate_many(texts, max_tokens=7)
        assert [one.text for one in found] == [continued(text, 7) for text in texts]
        stopped = generator.generate_many(texts, max_tokens=7, stop_words=["b"])
        assert [one.text for one in stopped] == [continued(text, 7).split("b")[0] for text in texts]
        assert generator.generate_many([]) == []


def test_callers_beside_each_other_get_what_they_get_alone(decoder: TextGenerator) -> None:
    calls: list[dict[str, Any]] = [
        {"max_tokens": 15},
        {"max_tokens": 15, "stop_words": ["e", "qu"]},
        {"max_tokens": 15, "temperature": 1.5, "seed": 3},
        {"max_tokens": 9, "num_beams": 2},
    ]
    texts = ["cat", "the dog sat", "z.", "a b c d"]
    alone = {(i, text): decoder.generate(text, **fields) for i, fields in enumerate(calls) for text in texts}

    def ask(job: tuple[int, str]) -> bool:
        number, text = job
        if len(text) % 2:
            return joined(decoder.stream(text, **calls[number])) == (alone[job],)
        with decoder.stream(text, **calls[0]) as left:
            next(left)
        return decoder.generate(text, **calls[number]) == alone[job]

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, [*alone] * 6))
    assert is_idle(decoder)


# Event loops


def test_event_loops_get_the_same(decoder: TextGenerator, summarizer: TextGenerator) -> None:
    async def pieces(text: str) -> list[Piece]:
        return [piece async for piece in decoder.stream(text, max_tokens=9)]

    async def everything() -> tuple[list[list[Piece]], list[tuple[Piece, ...]]]:
        streams = asyncio.gather(*(pieces(text) for text in ("cat", "dog", "bird")))
        wholes = asyncio.gather(*(summarizer.generate_async(text, max_tokens=9) for text in ("cat", "dog")))
        return await streams, await wholes

    streams, wholes = asyncio.run(everything())
    assert ["".join(piece.text for piece in stream) for stream in streams] == [
        continued(text, 9) for text in ("cat", "dog", "bird")
    ]
    assert [found[0].text for found in wholes] == [answered(text, 9) for text in ("cat", "dog")]


# Leaving early


def cancelled(generator: TextGenerator) -> int:
    """How many requests were cancelled, when no other is left."""
    assert is_idle(generator)
    return generator.engine.stats().cancelled


def test_whoever_leaves_a_stream_cancels_it(endless: TextGenerator) -> None:
    before = cancelled(endless)
    for piece in endless.stream("cat", max_tokens=ENDLESS):
        assert piece.text
        break
    assert cancelled(endless) == before + 1
    with endless.stream("cat", max_tokens=ENDLESS) as stream:
        next(stream)
    assert cancelled(endless) == before + 2
    assert list(stream) == []


def test_a_stream_that_is_forgotten_is_cancelled(endless: TextGenerator) -> None:
    before = cancelled(endless)
    endless.stream("cat", max_tokens=ENDLESS)
    assert cancelled(endless) == before + 1


def test_a_stream_can_be_cancelled_from_another_thread(endless: TextGenerator) -> None:
    stream = endless.stream("cat", max_tokens=ENDLESS)
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    found = joined(stream)
    thread.join()
    assert found[0].finish_reason == "cancelled"
    assert found[0].text == continued("cat", found[0].output_tokens, eos=())


def test_a_cancelled_task_cancels_its_request(endless: TextGenerator) -> None:
    async def leave() -> None:
        task = asyncio.create_task(endless.generate_async("cat", max_tokens=ENDLESS))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = cancelled(endless)
    asyncio.run(leave())
    assert cancelled(endless) == before + 1


def test_a_loop_that_is_left_cancels_its_request(endless: TextGenerator) -> None:
    async def leave() -> None:
        async with endless.stream("cat", max_tokens=ENDLESS) as stream:
            async for _ in stream:
                break

    before = cancelled(endless)
    asyncio.run(leave())
    assert cancelled(endless) == before + 1


def test_a_stop_string_ends_the_request_in_the_engine(endless: TextGenerator) -> None:
    stop = continued("cat", 20)[4:7]
    before, tokens = cancelled(endless), endless.engine.stats().tokens
    found = endless.generate("cat", max_tokens=ENDLESS, stop_words=[stop])
    assert (found.text + stop, found.finish_reason) == (continued("cat", found.output_tokens), "stop")
    assert cancelled(endless) == before + 1
    assert endless.engine.stats().tokens - tokens < ENDLESS // 2


def test_a_failure_of_many_cancels_the_others(endless: TextGenerator) -> None:
    before = cancelled(endless)
    with pytest.raises(DoesNotFit):
        endless.generate_many(["cat", "dog", "x" * 2 * ENDLESS], max_tokens=ENDLESS)
    assert cancelled(endless) == before + 2


def test_a_timeout_is_kept(endless: TextGenerator) -> None:
    for timeout in (0.0, 0.05):
        with pytest.raises(DeadlineExceeded):
            endless.generate("cat", max_tokens=ENDLESS, timeout=timeout)
    assert is_idle(endless)
    for wrong in (-1, "1", float("nan"), True):
        with pytest.raises(InvalidRequest, match="timeout"):
            endless.generate("cat", timeout=wrong)


# Refusals and failures


def test_refusals_come_at_once(decoder: TextGenerator) -> None:
    for call in (decoder.stream, decoder.generate, decoder.generate_all):
        with pytest.raises(InvalidRequest, match="did you mean max_tokens"):
            call("cat", max_token=3)
        with pytest.raises(DoesNotFit):
            call("c" * 100)
        with pytest.raises(InvalidRequest):
            call("")


def test_a_failed_step_is_raised_in_threads_and_event_loops(tmp_path: Path) -> None:
    async def read(generator: TextGenerator) -> None:
        async for _ in generator.stream(".", max_tokens=5):
            pass

    with TextGenerator.open(write_model(tmp_path, fails=True), threads=1) as generator:
        with pytest.raises(StepFailed):
            generator.generate(".", max_tokens=5)
        with pytest.raises(StepFailed):
            list(generator.stream(".", max_tokens=5))
        with pytest.raises(StepFailed):
            asyncio.run(read(generator))
        assert is_idle(generator)


# Long documents


def chunks(generator: TextGenerator, text: str, **fields: Any) -> Piece:
    found = generator.generate(text, long="chunk", **fields)
    streamed = joined(generator.stream(text, long="chunk", **fields))
    assert streamed == (found,)
    return found


def test_a_document_of_one_part_is_a_text(summarizer: TextGenerator) -> None:
    whole = summarizer.generate("the dog sat", max_tokens=6)
    for merge in ("concat", "recursive"):
        assert chunks(summarizer, "the dog sat", max_tokens=6, merge=merge) == whole


def test_each_part_is_answered_alone(summarizer: TextGenerator) -> None:
    words = ["w" * 40, "x" * 40, "yyy"]
    expected = [answered(part, 5) for part in ("w" * 40, "x" * 40 + " yyy")]
    found = chunks(summarizer, " ".join(words), max_tokens=5, overlap=0)
    assert found.text == " ".join(text for text in expected if text)
    assert found.input_tokens == 40 + 44


def test_texts_of_texts_are_made_until_one_is_left(summarizer: TextGenerator) -> None:
    text = " ".join(letter * 40 for letter in "bcdefghijk")
    first = " ".join(filter(None, (answered(letter * 40, 8) for letter in "bcdefghijk")))
    assert len(first) > SOURCE
    found = chunks(summarizer, text, max_tokens=8, overlap=0, merge="recursive")
    assert len(found.text) <= 8
    assert found.output_tokens > 10 * 4
    assert found == chunks(summarizer, text, max_tokens=8, overlap=0, merge="recursive")


def test_many_documents(summarizer: TextGenerator) -> None:
    texts = [" ".join(letter * 40 for letter in letters) for letters in ("bc", "def", "g")]
    fields: dict[str, Any] = {"max_tokens": 5, "overlap": 0}
    many = summarizer.generate_many(texts, long="chunk", **fields)
    assert many == [chunks(summarizer, text, **fields) for text in texts]


def test_parts_without_an_answer_leave_no_space(summarizer: TextGenerator) -> None:
    sizes = [(letter, size) for letter in "bcdefghijklmnop" for size in range(30, 46)]
    silent = next(letter * size for letter, size in sizes if not answered(letter * size, 5))
    spoken = next(letter * size for letter, size in sizes if answered(letter * size, 5))
    for order in ((silent, spoken), (spoken, silent), (spoken, silent, spoken), (silent, silent)):
        expected = " ".join(filter(None, (answered(part, 5) for part in order)))
        assert chunks(summarizer, " ".join(order), max_tokens=5, overlap=0).text == expected
    assert chunks(summarizer, f"{silent} {silent}", max_tokens=5, overlap=0, merge="recursive").text == ""


def test_a_document_can_be_left_and_cancelled(summarizer: TextGenerator) -> None:
    text = " ".join(letter * 40 for letter in "bcdefghijklmnop")
    with summarizer.stream(text, long="chunk", max_tokens=40) as stream:
        next(stream)
    assert is_idle(summarizer)
    for merge in ("concat", "recursive"):
        stream = summarizer.stream(text, long="chunk", max_tokens=40, merge=merge)
        stream.cancel()
        assert joined(stream)[0].finish_reason == "cancelled"
        assert is_idle(summarizer)


# Opening


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    def damaged(name: str, **changed: Any) -> Path:
        return write_model(tmp_path / name, **changed)

    cases = {
        "generation.json": lambda folder: (folder / "generation.json").write_text("{}"),
        "tokenizer.json": lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "engine.json": lambda folder: (folder / "cpu" / "engine.json").unlink(),
    }
    for name, damage in cases.items():
        folder = damaged(name)
        damage(folder)
        with pytest.raises(ModelDamaged, match=name):
            TextGenerator.open(folder)
    with pytest.raises(ModelDamaged, match="'gpu'"):
        TextGenerator.open(damaged("gpu"), device="gpu")
    with pytest.raises(ModelDamaged, match="max_length is 65"):
        TextGenerator.open(damaged("long", max_length=65))
    with pytest.raises(ModelDamaged, match="contradict"):
        TextGenerator.open(damaged("defaults", defaults={"num_beams": 2, "do_sample": True}))


def test_an_engine_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    facts = json.loads((folder / "generation.json").read_text())
    facts |= {"kind": "encoder-decoder", "max_source": 48, "decoder_start_token_ids": [1]}
    (folder / "generation.json").write_text(json.dumps(facts))
    with pytest.raises(ModelDamaged, match="encoder-decoder"):
        TextGenerator.open(folder)
