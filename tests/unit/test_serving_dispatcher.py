"""Requests from their submission to their responses, through a real engine (a toy model) and without Triton."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.engine.errors import DeadlineExceeded, EngineError, InvalidRequest, QueueFull, StepFailed
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.serving.dispatcher import LONG_TEXT, Dispatcher
from hfx.python_backends.serving.request import ActiveRequest
from hfx.python_backends.serving.response_writer import Reply
from tests.unit.generation_models import write_model
from tests.unit.serving_channels import Caller
from tests.waiting import wait_until

ENDLESS = 20_000
WAIT = 30.0


class Service:
    """A dispatcher over a generator, as the adapter has it."""

    def __init__(self, generator: TextGenerator) -> None:
        self.generator = generator
        self.lines: list[str] = []
        self.dispatcher = Dispatcher(self.lines.append)
        self.ends: list[Exception | None] = []
        self.requests: list[ActiveRequest] = []

    def ask(self, text: str, caller: Caller | None = None, streams: bool = True, **fields: Any) -> Caller:
        open_stream = self.generator.stream if streams else self.generator.whole
        return self.submit(partial(open_stream, text, **fields), caller, size=len(text))

    def submit(
        self,
        open_stream: Callable[[], Any],
        caller: Caller | None = None,
        deadline: float | None = None,
        size: int = 3,
    ) -> Caller:
        caller = caller or Caller()
        request = ActiveRequest(Reply(caller), open_stream, deadline, lambda _, error: self.ends.append(error))
        self.requests.append(request)
        self.dispatcher.submit(request, size)
        return caller

    def close(self) -> None:
        for request in self.requests:
            request.cancel()
        wait_until(lambda: len(self.ends) == len(self.requests))
        self.dispatcher.close()


@contextmanager
def serving(folder: Path, **changed: Any) -> Iterator[Service]:
    with TextGenerator.open(write_model(folder, **changed), slots=4, max_queue=8, threads=1) as generator:
        service = Service(generator)
        yield service
        service.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path, positions=2 * ENDLESS, eos_token_ids=[]) as service:
        yield service
    assert not service.lines


def test_pieces_of_many_requests_are_their_whole_texts(service: Service) -> None:
    texts = ["cat", "dog", "bird", "the dog sat", "z", "a b"]
    callers = [service.ask(text, max_tokens=40) for text in texts]
    for text, caller in zip(texts, callers, strict=True):
        assert caller.ended.wait(WAIT)
        assert caller.text == service.generator.generate(text, max_tokens=40).text
        assert (caller.finals, caller.pieces[-1].output_tokens) == (1, 40)
    assert service.ends == [None] * len(texts)


def test_a_whole_text_is_one_response(service: Service) -> None:
    caller = service.ask("cat", streams=False, max_tokens=60, return_log_probs=True)
    assert caller.ended.wait(WAIT)
    assert caller.pieces == [service.generator.generate("cat", max_tokens=60, return_log_probs=True)]


def test_a_refused_request_ends_with_its_error(service: Service) -> None:
    caller = service.ask("cat", temperature=-1.0)
    assert caller.ended.wait(WAIT)
    assert isinstance(caller.errors[0], InvalidRequest)
    assert (caller.finals, service.ends) == (1, caller.errors)


def test_a_full_queue_refuses(service: Service) -> None:
    callers = [service.ask("cat", max_tokens=ENDLESS) for _ in range(20)]
    wait_until(lambda: sum(bool(caller.errors) for caller in callers) == 8)
    assert all(isinstance(caller.errors[0], QueueFull) for caller in callers if caller.errors)


def test_a_request_whose_caller_has_left_is_cancelled_and_others_go_on(service: Service) -> None:
    leaving, staying = service.ask("cat", max_tokens=ENDLESS), service.ask("dog", max_tokens=400)
    wait_until(lambda: bool(leaving.pieces))
    leaving.has_left = True
    assert leaving.ended.wait(WAIT)
    assert leaving.pieces[-1].finish_reason == "cancelled"
    assert staying.ended.wait(WAIT)
    assert staying.text == service.generator.generate("dog", max_tokens=400).text
    assert service.generator.engine.stats().cancelled == 1


def test_a_request_cancelled_before_its_text_is_tokenized_is_cancelled(service: Service) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def open_late() -> Any:
        reached.set()
        assert goes_on.wait(WAIT)
        return service.generator.stream("cat", max_tokens=ENDLESS)

    caller = service.submit(open_late)
    assert reached.wait(WAIT)
    service.requests[0].cancel()
    goes_on.set()
    assert caller.ended.wait(WAIT)
    assert caller.pieces[-1].finish_reason == "cancelled"


def test_a_deadline_is_kept_by_what_the_engine_does_not_have_yet(service: Service) -> None:
    goes_on = threading.Event()

    def open_late() -> Any:
        assert goes_on.wait(WAIT)
        return service.generator.stream("cat", max_tokens=ENDLESS)

    caller = service.submit(open_late, deadline=time.monotonic())
    assert caller.ended.wait(WAIT)
    assert isinstance(caller.errors[0], DeadlineExceeded)
    goes_on.set()
    wait_until(lambda: len(service.ends) == 1)
    assert caller.finals == 1


def test_long_texts_do_not_hold_up_short_ones(service: Service) -> None:
    goes_on = threading.Event()

    def refuse_late() -> Any:
        goes_on.wait(WAIT)
        raise InvalidRequest("text", "", "another one")

    for _ in range(8):
        service.submit(refuse_late, size=LONG_TEXT + 1)
    assert service.ask("cat", max_tokens=4).ended.wait(WAIT)
    goes_on.set()


def test_a_caller_that_can_not_be_reached_holds_up_no_other(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("the pipe is gone")

    with serving(tmp_path) as service:
        service.ask("cat", Caller(broken), max_tokens=12)
        assert service.ask("dog", max_tokens=12).ended.wait(WAIT)
    assert service.lines and all("the pipe is gone" in line for line in service.lines)


def test_a_failed_step_ends_its_requests_with_the_error(tmp_path: Path) -> None:
    with serving(tmp_path, fails=True) as service:
        for caller in [service.ask(".", streams=streams, max_tokens=5) for streams in (True, False)]:
            assert caller.ended.wait(WAIT)
            assert isinstance(caller.errors[0], StepFailed) and caller.finals == 1


def test_closing_the_engine_ends_what_runs(service: Service) -> None:
    caller = service.ask("cat", max_tokens=ENDLESS)
    wait_until(lambda: bool(caller.pieces))
    service.generator.close()
    assert caller.ended.wait(WAIT)
    assert isinstance(caller.errors[0], EngineError) and caller.finals == 1


def test_documents_are_divided_beside_the_thread_that_makes_texts(tmp_path: Path) -> None:
    with serving(tmp_path, max_source=48) as service:
        text = "the dog sat. " * 20
        callers = [service.ask(text, streams=streams, long="chunk", max_tokens=6) for streams in (True, False)]
        for caller in callers:
            assert caller.ended.wait(WAIT)
            assert caller.text == service.generator.generate(text, long="chunk", max_tokens=6).text
        assert len(callers[1].pieces) == 1
