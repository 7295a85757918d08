"""The engine gives each request the tokens that it has alone, whichever requests start, end or are cancelled."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from hfx.python_backends.engine import reference
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.errors import DeadlineExceeded, DoesNotFit, EngineError, InvalidRequest, QueueFull
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.engine_oracle import expected
from tests.rigs.engine.watched_engine import (
    Gate,
    gated_engine,
    open_engine,
    random_request,
    wait_until_idle,
)
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until

SMALL = Limits(chunk=8, prefill=32, encode=32)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def encoder_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_encoder_decoder(tmp_path_factory.mktemp("encoder-decoder"))


@pytest.fixture(params=["decoder", "encoder_decoder"])
def folder(request: pytest.FixtureRequest) -> Path:
    toy: Path = request.getfixturevalue(request.param)
    return toy


def ask(prompt: tuple[int, ...], max_tokens: int, folder: Path | None = None, **settings: object) -> Request:
    """Return a request; for the encoder-decoder in `folder`, its decoder starts with 1."""
    if folder is not None and has_encoder(folder):
        settings = {"decoder_prompt": (1,), **settings}
    return Request(prompt, Settings(max_tokens=max_tokens, **settings))  # type: ignore[arg-type]


def has_encoder(folder: Path) -> bool:
    return (folder / "encoder.onnx").is_file()


def facts(completions: tuple[Event, ...]) -> list[tuple[int, tuple[int, ...], str]]:
    """Return the parts that must be bit equal; scores and log-probabilities of the reference are numpy's."""
    return [(each.index, each.ids, each.finish_reason) for each in completions]


def test_tokens_are_those_worked_out_by_hand(decoder: Path) -> None:
    # Fed 3, 5:    3*1 + 5*2       = 13, 3 * first = 9, 5 * (3*1 + 5*2)       =  65, 7 * last = 35; 123 % 29 =  7
    # Fed 3, 5, 7: 3*1 + 5*2 + 7*3 = 34, 3 * first = 9, 5 * (3*1 + 5*2 + 7*1) = 100, 7 * last = 49; 193 % 29 = 19
    with open_engine(decoder, 1) as engine:
        assert engine.submit(ask((3, 5), 2)).result(10) == (Event(0, (7, 19), "length"),)


@pytest.mark.parametrize("has_encoder", [False, True])
def test_the_reference_reads_a_published_generator_and_agrees_with_the_engine(
    tmp_path: Path, has_encoder: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (toys.write_encoder_decoder if has_encoder else toys.write_decoder)(tmp_path / "cpu")
    tokenizer = Tokenizer(WordLevel({str(token): token for token in range(toys.VOCABULARY)}, unk_token="0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    start = (1,) if has_encoder else ()
    (tmp_path / "generation.json").write_text(f'{{"decoder_start_token_ids": {[*start]}, "eos_token_ids": [28]}}')
    assert reference.main(str(tmp_path), "3 5 7 11") == 0
    settings = Settings(max_tokens=reference.TOKENS, decoder_prompt=start, eos_ids=(28,))
    (greedy,) = expected(Request((3, 5, 7, 11), settings))
    assert repr(tokenizer.decode(greedy.ids)) in capsys.readouterr().out


def test_an_encoder_decoder_adds_the_terms_of_its_source(encoder_decoder: Path) -> None:
    # Fed 2: 2 + 3*2 + 5*2 + 7*2 = 32. Source 4, 6: 11 * (4*1 + 6*2) + 13 * 4 + 17 * (4*1 + 6*2) + 19 * 6 = 614.
    with open_engine(encoder_decoder, 1) as engine:
        (completion,) = engine.submit(ask((4, 6), 1, decoder_prompt=(2,))).result(10)
    assert completion.ids == ((32 + 614 + 1) % 29,) == (9,)


def test_events_are_the_tokens_as_they_come_and_then_the_completion(folder: Path) -> None:
    with open_engine(folder, 2) as engine:
        handle = engine.submit(ask((3, 5), 4, folder))
        events = list(handle)
        (completion,) = handle.result(1)
    assert events == [*(Event(0, (one,)) for one in completion.ids), completion]
    assert len(completion.ids) == 4


@pytest.mark.parametrize("seed", [0, *map(full, range(1, 6))])
def test_64_concurrent_and_partly_cancelled_requests_answer_as_alone(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng, has_encoder(folder)) for _ in range(64)]
    with open_engine(folder, slots=rng.randint(3, 12), limits=SMALL) as engine:
        handles = []
        for request in requests:
            handles.append(engine.submit(request))
            time.sleep(rng.choice((0, 0, 0.002)))
            if rng.random() < 0.1:
                rng.choice(handles).cancel()
        answers = [handle.result(60) for handle in handles]
        wait_until_idle(engine)
        stats = engine.stats()
        assert (stats.slots_used, stats.waiting, stats.requests) == (0, 0, 0)
        assert stats.completed + stats.cancelled == 64
    for request, answer in zip(requests, answers, strict=True):
        wanted = expected(request)
        if all(each.finish_reason != "cancelled" for each in answer):
            assert facts(answer) == facts(wanted), request
        elif request.settings.num_beams == 1:
            assert all(each.ids == full.ids[: len(each.ids)] for each, full in zip(answer, wanted, strict=True))


def test_a_request_that_can_never_fit_is_refused_with_the_numbers(folder: Path) -> None:
    with open_engine(folder, 2) as engine:
        with pytest.raises(DoesNotFit, match="3 rows; this engine has 2"):
            engine.submit(ask((1,), 5, folder, num_beams=3))
        with pytest.raises(DoesNotFit, match="65 positions; this engine has 64"):
            engine.submit(ask((1,), 64, folder))
        if has_encoder(folder):
            with pytest.raises(DoesNotFit, match="49 source positions; this engine has 48"):
                engine.submit(ask((1,) * 49, 1, folder))
        assert engine.submit(ask((1,), 63, folder)).result(10)[0].finish_reason == "length"


def test_ids_and_beams_that_the_model_lacks_are_refused_by_field(folder: Path) -> None:
    with open_engine(folder, 8) as engine:
        with pytest.raises(InvalidRequest, match="prompt is 29; it must be made of ids from 0 to 28"):
            engine.submit(ask((29,), 5, folder))
        if has_encoder(folder):
            with pytest.raises(InvalidRequest, match="num_beams is 5; it must be 1 or 2 or 3 or 4"):
                engine.submit(ask((1,), 5, folder, num_beams=5))


def test_a_full_queue_refuses_and_takes_nothing(folder: Path) -> None:
    gate = Gate()
    with gated_engine(folder, gate, slots=1, max_queue=2) as engine:
        running = engine.submit(ask((1, 2), 9, folder))
        gate.wait_until_reached()  # the first has its row; the scheduler's thread stands still
        assert engine.most_open() is None
        waiting = [engine.submit(ask((1, at), 9, folder)) for at in range(2)]
        with pytest.raises(QueueFull):
            engine.submit(ask((1, 2), 9, folder))
        assert engine.stats().waiting == 2
        assert engine.most_open() == 3
        gate.open()
        assert all(len(handle.result(10)[0].ids) == 9 for handle in (running, *waiting))
        assert len(engine.submit(ask((1, 2), 9, folder)).result(10)[0].ids) == 9


def test_the_queue_is_bounded_by_seconds_from_past_requests(folder: Path) -> None:
    first, second = Gate(), Gate()
    with gated_engine(folder, first, slots=1, max_queue_seconds=1.0) as engine:
        taken = engine.submit(ask((1, 2), 3, folder))
        first.wait_until_reached()
        time.sleep(0.3)
        first.open()
        taken.result(10)
        engine._core._observer = second
        assert engine.stats().most_waiting in (1, 2, 3)  # of 0.3 s or more each
        handles = [engine.submit(ask((1, 2), 3, folder))]
        second.wait_until_reached()
        handles += [engine.submit(ask((1, 2), 3, folder)) for _ in range(engine.stats().most_waiting)]
        with pytest.raises(QueueFull):
            engine.submit(ask((1, 2), 3, folder))
        second.open()
        assert all(len(handle.result(10)[0].ids) == 3 for handle in handles)


def test_requests_that_get_a_row_at_once_need_no_place_in_the_queue(folder: Path) -> None:
    gate = Gate()
    with gated_engine(folder, gate, slots=6, max_queue=1) as engine:
        handles = [engine.submit(ask((1, 2), 9, folder))]
        gate.wait_until_reached()
        handles += [engine.submit(ask((1, at), 9, folder)) for at in range(6)]  # five rows are free, one may wait
        with pytest.raises(QueueFull):
            engine.submit(ask((1, 2), 9, folder))
        assert engine.most_open() == 7
        gate.open()
        assert all(len(handle.result(10)[0].ids) == 9 for handle in handles)
        assert (engine.most_open() or 0) >= 7


def test_a_deadline_that_passes_fails_the_request_and_frees_its_rows(folder: Path) -> None:
    settings = ask((1, 2), 60, folder).settings
    with open_engine(folder, 1) as engine:
        late = engine.submit(Request((1, 2), settings, deadline=time.monotonic() - 1))
        with pytest.raises(DeadlineExceeded):
            late.result(10)
        in_time = engine.submit(Request((1, 2), settings, deadline=time.monotonic() + 600))
        assert in_time.result(10)[0].finish_reason == "length"
        assert engine.stats().slots_free == 1


def test_stats_count_what_was_done(folder: Path) -> None:
    with open_engine(folder, 4) as engine:
        for at in range(4):
            engine.submit(ask((1, at), 5, folder)).result(10)
        engine.submit(ask((1, 2), 5, folder, num_beams=2)).result(10)
        steps = 25 if has_encoder(folder) else 20
        wait_until(lambda: engine.stats().steps == steps, "the last step's count")
        stats = engine.stats()
    assert (stats.completed, stats.failed, stats.cancelled, stats.tokens) == (5, 0, 0, 25)
    assert stats.prompt_tokens == 10
    assert stats.step_seconds > 0


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"max_queue": 0}])
def test_an_engine_needs_slots_and_a_queue(decoder: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(EngineError, match=r"is 0\. It must be at least 1"):
        Engine.open(decoder, **wrong)
