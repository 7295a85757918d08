"""Texts from the engine's toy models, with answers worked out by hand (generation_models.py, engine_toys.py)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.errors import DeadlineExceeded, DoesNotFit, InvalidRequest, ModelDamaged, StepFailed
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.generation.pieces import Piece, join_texts
from tests.rigs.engine.generation_models import answered, continued, write_model
from tests.rigs.machine.waiting import wait_until

SOURCE = 48
ENDLESS = 20_000


SAMPLES: dict[str, Any] = {"max_tokens": 12, "num_return_sequences": 3, "temperature": 2.0, "seed": 5}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    with TextGenerator.open(write_model(tmp_path_factory.mktemp("decoder")), slots=4, threads=1) as generator:
        yield generator


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A decoder that continues until it is stopped, for seconds."""
    folder = write_model(tmp_path_factory.mktemp("endless"), positions=2 * ENDLESS, eos_token_ids=[])
    with TextGenerator.open(folder, slots=4, threads=1) as generator:
        yield generator


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    folder = write_model(tmp_path_factory.mktemp("summarizer"), max_source=SOURCE)
    with TextGenerator.open(folder, slots=8, threads=1) as generator:
        yield generator


def wait_until_idle(generator: TextGenerator) -> None:
    """Wait until no request is left."""
    wait_until(lambda: not ((stats := generator.engine.stats()).requests or stats.waiting), "the last request's end")


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
    assert join_texts(pieces) == (decoder.generate("cat", max_tokens=12),)
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert len(pieces) >= 5
    assert [piece.output_tokens for piece in pieces] == sorted(piece.output_tokens for piece in pieces)


def test_each_token_has_one_log_probability(decoder: TextGenerator) -> None:
    whole = decoder.generate("cat", max_tokens=8, return_log_probs=True)
    assert whole.log_probs is not None
    assert len(whole.log_probs) == whole.output_tokens
    assert all(one < 0 for one in whole.log_probs)
    assert join_texts(decoder.stream("cat", max_tokens=8, return_log_probs=True)) == (whole,)
    assert decoder.generate("cat", max_tokens=8).log_probs is None


# Stop strings


def test_a_text_ends_before_a_stop_string(decoder: TextGenerator) -> None:
    whole = continued("cat", 20)
    stop = whole[5:8]
    expected = whole[: whole.index(stop)]
    found = decoder.generate("cat", max_tokens=20, stop_words=["???", stop])
    assert (found.text, found.finish_reason) == (expected, "stop")
    assert found.output_tokens == len(expected) + 3
    assert join_texts(decoder.stream("cat", max_tokens=20, stop_words=["???", stop])) == (found,)


# Several texts


def test_several_samples_are_told_apart_and_end_at_their_own_stop_strings(decoder: TextGenerator) -> None:
    samples = decoder.generate_all("cat", **SAMPLES)
    assert [sample.index for sample in samples] == [0, 1, 2]
    assert len({sample.text for sample in samples}) == 3
    assert join_texts(decoder.stream("cat", **SAMPLES)) == samples
    stop = samples[0].text[1:4]
    stopped = decoder.generate_all("cat", **SAMPLES, stop_words=[stop])
    assert [sample.text for sample in stopped] == [sample.text.split(stop)[0] for sample in samples]


def test_generate_refuses_several_return_sequences(decoder: TextGenerator) -> None:
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


# Leaving early


def cancelled(generator: TextGenerator) -> int:
    """Return the number of cancelled requests, once no other is left."""
    wait_until_idle(generator)
    return generator.engine.stats().cancelled


def test_a_stream_that_is_left_or_forgotten_is_cancelled(endless: TextGenerator) -> None:
    before = cancelled(endless)
    for piece in endless.stream("cat", max_tokens=ENDLESS):
        assert piece.text
        break
    assert cancelled(endless) == before + 1
    with endless.stream("cat", max_tokens=ENDLESS) as stream:
        next(stream)
    assert cancelled(endless) == before + 2
    assert list(stream) == []
    endless.stream("cat", max_tokens=ENDLESS)
    assert cancelled(endless) == before + 3


def test_a_stream_can_be_cancelled_from_another_thread(endless: TextGenerator) -> None:
    stream = endless.stream("cat", max_tokens=ENDLESS)
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    found = join_texts(stream)
    thread.join()
    assert found[0].finish_reason == "cancelled"
    assert found[0].text == continued("cat", found[0].output_tokens, eos=())


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


def test_a_timeout_ends_generation_and_an_invalid_one_is_refused(endless: TextGenerator) -> None:
    for timeout in (0.0, 0.05):
        with pytest.raises(DeadlineExceeded):
            endless.generate("cat", max_tokens=ENDLESS, timeout=timeout)
    wait_until_idle(endless)
    for wrong in (-1, "1", float("nan"), True):
        with pytest.raises(InvalidRequest, match="timeout"):
            endless.generate("cat", timeout=wrong)


# Refusals and failures


def test_invalid_requests_are_refused_by_the_call_itself(decoder: TextGenerator) -> None:
    for call in (decoder.stream, decoder.generate, decoder.generate_all):
        with pytest.raises(InvalidRequest, match="did you mean max_tokens"):
            call("cat", max_token=3)
        with pytest.raises(DoesNotFit):
            call("c" * 100)
        with pytest.raises(InvalidRequest):
            call("")


def test_a_failed_step_is_raised(tmp_path: Path) -> None:
    with TextGenerator.open(write_model(tmp_path, fails=True), threads=1) as generator:
        with pytest.raises(StepFailed):
            generator.generate(".", max_tokens=5)
        with pytest.raises(StepFailed):
            list(generator.stream(".", max_tokens=5))
        wait_until_idle(generator)


# Long documents


def chunks(generator: TextGenerator, text: str, **fields: Any) -> Piece:
    whole = generator.generate(text, long="chunk", **fields)
    assert join_texts(generator.stream(text, long="chunk", **fields)) == (whole,)
    return whole


def test_a_document_of_one_part_is_answered_like_a_text(summarizer: TextGenerator) -> None:
    whole = summarizer.generate("the dog sat", max_tokens=6)
    for merge in ("concat", "recursive"):
        assert chunks(summarizer, "the dog sat", max_tokens=6, merge=merge) == whole


def test_recursive_merging_repeats_until_one_text_is_left(summarizer: TextGenerator) -> None:
    text = " ".join(letter * 40 for letter in "bcdefghijk")
    first = " ".join(filter(None, (answered(letter * 40, 8) for letter in "bcdefghijk")))
    assert len(first) > SOURCE
    found = chunks(summarizer, text, max_tokens=8, overlap=0, merge="recursive")
    assert len(found.text) <= 8
    assert found.output_tokens > 10 * 4


def test_each_part_of_many_documents_is_answered_alone(summarizer: TextGenerator) -> None:
    documents = [[letter * 40 for letter in letters] for letters in ("bc", "def", "g")]
    fields: dict[str, Any] = {"max_tokens": 5, "overlap": 0}
    texts = [" ".join(parts) for parts in documents]
    many = summarizer.generate_many(texts, long="chunk", **fields)
    assert [piece.text for piece in many] == [
        " ".join(filter(None, (answered(part, 5) for part in parts))) for parts in documents
    ]
    assert [piece.input_tokens for piece in many] == [80, 120, 40]
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
    wait_until_idle(summarizer)
    for merge in ("concat", "recursive"):
        stream = summarizer.stream(text, long="chunk", max_tokens=40, merge=merge)
        stream.cancel()
        assert join_texts(stream)[0].finish_reason == "cancelled"
        wait_until_idle(summarizer)


# Opening


@pytest.mark.parametrize("name", ["generation.json", "tokenizer.json", "cpu/engine.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (write_model(tmp_path) / name).write_text("{}")
    with pytest.raises(ModelDamaged, match=name):
        TextGenerator.open(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_length": 65}, "max_length is 65"),
        ({"defaults": {"num_beams": 2, "do_sample": True}}, "contradict"),
        ({"kind": "encoder-decoder", "max_source": 48, "decoder_start_token_ids": [1]}, "kind is encoder-decoder"),
    ],
)
def test_a_configuration_that_contradicts_its_engine_or_itself_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = write_model(tmp_path) / "generation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ModelDamaged, match=message):
        TextGenerator.open(tmp_path)


def test_a_device_without_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelDamaged, match="'gpu'"):
        TextGenerator.open(write_model(tmp_path), device="gpu")
