"""Requests from their submission to their responses, with a real engine (a toy model) and without Triton."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.errors import EngineError, InvalidRequest, StepFailed
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.serving.dispatcher import LONG_TEXT, Dispatcher
from hfx.python_backends.serving.request import GenerateRequest
from tests.rigs.engine.generation_models import write_model
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serving_channels import Caller

ENDLESS = 20_000
WAIT = 30.0


class Service:
    """A dispatcher over a generator, as in the adapter."""

    def __init__(self, generator: TextGenerator) -> None:
        self.generator = generator
        self.lines: list[str] = []
        self.ends: list[Exception | None] = []
        self.requests: list[GenerateRequest] = []
        self.dispatcher = Dispatcher(self._opener, lambda _, error: self.ends.append(error), self.lines.append)
        self._openers: dict[GenerateRequest, Callable[[], Any]] = {}

    def submit(self, text: str, caller: Caller | None = None, streams: bool = True, **settings: Any) -> Caller:
        opener = self.generator.live if streams else self.generator.joined
        timeout = settings.pop("timeout", None)
        return self.submit_opened(partial(opener, text, settings, timeout), caller, text=text)

    def submit_opened(
        self,
        opener: Callable[[], Any],
        caller: Caller | None = None,
        deadline: float | None = None,
        text: str = "cat",
    ) -> Caller:
        caller = caller or Caller()
        request = GenerateRequest(caller)
        request.text, request.deadline = text, deadline
        self._openers[request] = opener
        self.requests.append(request)
        self.dispatcher.submit(request)
        return caller

    def _opener(self, request: GenerateRequest) -> Any:
        return self._openers.pop(request)()

    def finish(self, text: str = "cat", leaves: bool = False, **settings: Any) -> None:
        """Submit a request, whose caller may disconnect, and wait for its end."""
        caller = Caller()
        caller.has_left = leaves
        self.submit(text, caller, **settings)
        assert caller.ended.wait(WAIT)
        wait_until(lambda: len(self.ends) == len(self.requests))
        self.requests.clear()
        self.ends.clear()

    def close(self) -> None:
        for request in self.requests:
            request.cancel()
        wait_until(lambda: len(self.ends) == len(self.requests))
        self.dispatcher.close()


@contextmanager
def serving(folder: Path, **changed: Any) -> Iterator[Service]:
    with TextGenerator.open(write_model(folder, **changed), slots=4, max_queue=8, threads=1) as generator:
        service = Service(generator)
        try:
            yield service
        finally:
            service.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path, positions=2 * ENDLESS, eos_token_ids=[]) as service:
        yield service
    assert not service.lines


def test_pieces_of_many_requests_are_their_whole_texts(service: Service) -> None:
    texts = ["cat", "dog", "bird", "the dog sat", "z", "a b"]
    callers = [service.submit(text, max_tokens=40) for text in texts]
    for text, caller in zip(texts, callers, strict=True):
        assert caller.ended.wait(WAIT)
        assert caller.text == service.generator.generate(text, max_tokens=40).text
        assert (caller.finals, caller.last["output_tokens"]) == (1, 40)
    assert service.ends == [None] * len(texts)


def test_a_request_that_is_not_streamed_gets_one_response(service: Service) -> None:
    caller = service.submit("cat", streams=False, max_tokens=60, return_log_probs=True)
    assert caller.ended.wait(WAIT)
    assert caller.outputs == [service.generator.generate("cat", max_tokens=60, return_log_probs=True).outputs()]


def test_a_refused_request_ends_with_its_error(service: Service) -> None:
    caller = service.submit("cat", temperature=-1.0)
    assert caller.ended.wait(WAIT)
    assert caller.codes == ["INVALID_ARG"] and caller.finals == 1
    assert isinstance(service.ends[0], InvalidRequest)


def test_a_full_queue_refuses(service: Service) -> None:
    callers = [service.submit("cat", max_tokens=ENDLESS) for _ in range(20)]
    wait_until(lambda: sum(bool(caller.codes) for caller in callers) == 8)
    assert all("[hfx:QUEUE_FULL]" in message for caller in callers for message in caller.messages)


def test_a_request_whose_caller_has_left_is_cancelled_and_others_go_on(service: Service) -> None:
    leaving, staying = service.submit("cat", max_tokens=ENDLESS), service.submit("dog", max_tokens=400)
    wait_until(lambda: bool(leaving.outputs))
    leaving.has_left = True
    assert leaving.ended.wait(WAIT)
    assert leaving.last["finish_reason"] == "cancelled"
    assert staying.ended.wait(WAIT)
    assert staying.text == service.generator.generate("dog", max_tokens=400).text
    assert service.generator.engine.stats().cancelled == 1


def test_a_request_cancelled_before_its_text_is_tokenized_is_cancelled(service: Service) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def open_late() -> Any:
        reached.set()
        assert goes_on.wait(WAIT)
        return service.generator.live("cat", {"max_tokens": ENDLESS})

    caller = service.submit_opened(open_late)
    assert reached.wait(WAIT)
    service.requests[0].cancel()
    goes_on.set()
    assert caller.ended.wait(WAIT)
    assert caller.last["finish_reason"] == "cancelled"


def test_a_deadline_ends_a_request_that_is_not_yet_in_the_engine(service: Service) -> None:
    goes_on = threading.Event()

    def open_late() -> Any:
        assert goes_on.wait(WAIT)
        return service.generator.live("cat", {"max_tokens": ENDLESS})

    caller = service.submit_opened(open_late, deadline=time.monotonic())
    assert caller.ended.wait(WAIT)
    assert "[hfx:DEADLINE_EXCEEDED]" in caller.messages[0]
    goes_on.set()
    wait_until(lambda: len(service.ends) == 1)
    assert caller.finals == 1


def test_long_texts_do_not_hold_up_short_ones(service: Service) -> None:
    goes_on = threading.Event()

    def refuse_late() -> Any:
        goes_on.wait(WAIT)
        raise InvalidRequest("text", "", "another one")

    for _ in range(8):
        service.submit_opened(refuse_late, text="a" * (LONG_TEXT + 1))
    assert service.submit("cat", max_tokens=4).ended.wait(WAIT)
    goes_on.set()


def test_a_caller_whose_channel_is_broken_delays_no_other(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("the pipe is gone")

    with serving(tmp_path) as service:
        service.submit("cat", Caller(broken), max_tokens=12)
        assert service.submit("dog", max_tokens=12).ended.wait(WAIT)
    assert service.lines and all("the pipe is gone" in line for line in service.lines)


def test_a_failed_step_ends_its_requests_with_the_error(tmp_path: Path) -> None:
    with serving(tmp_path, fails=True) as service:
        for caller in [service.submit(".", streams=streams, max_tokens=5) for streams in (True, False)]:
            assert caller.ended.wait(WAIT)
            assert isinstance(service.ends[-1], StepFailed) and caller.finals == 1


def test_closing_the_engine_ends_running_requests(service: Service) -> None:
    caller = service.submit("cat", max_tokens=ENDLESS)
    wait_until(lambda: bool(caller.outputs))
    service.generator.close()
    assert caller.ended.wait(WAIT)
    assert isinstance(service.ends[0], EngineError) and caller.finals == 1


def test_documents_are_divided_beside_the_thread_that_makes_texts(tmp_path: Path) -> None:
    with serving(tmp_path, max_source=48) as service:
        text = "the dog sat. " * 20
        callers = [service.submit(text, streams=streams, long="chunk", max_tokens=6) for streams in (True, False)]
        for caller in callers:
            assert caller.ended.wait(WAIT)
            assert caller.text == service.generator.generate(text, long="chunk", max_tokens=6).text
        assert len(callers[1].outputs) == 1


# What a request leaves behind: Triton unloads a model, and so stops, only when the objects of all requests are gone


def alive() -> Counter[str]:
    """Return the number of objects of requests by class, including those in reference cycles.

    The engine's buffers belong to no request: they grow with its load.
    """
    kinds = (type(each) for each in gc.get_objects())
    names = Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("hfx.python_backends"))
    return names - Counter({name: names[name] for name in ("Partition", "Binding")})


REQUESTS: dict[str, dict[str, Any]] = {
    "a stream": {},
    "a whole text": {"streams": False},
    "sampling": {"do_sample": True, "stop_words": ["the"]},
    "beams": {"num_beams": 2},
    "a document": {"text": "the dog sat. " * 20, "long": "chunk"},
    "a summary of summaries": {"text": "the dog sat. " * 20, "long": "chunk", "merge": "recursive"},
    "refused": {"temperature": -1.0},
    "late": {"timeout": 0.0},
    "left": {"max_tokens": 400, "leaves": True},
}


def check_freed(service: Service, **fields: Any) -> None:
    """Submit two requests (the first may set up lasting state), and check that the second one leaves no objects."""
    service.finish(**fields)
    gc.collect()
    gc.disable()
    try:
        before = alive()
        service.finish(**fields)
        with suppress(AssertionError):
            wait_until(lambda: alive() <= before, seconds=10)
        assert alive() - before == Counter()
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_that_is_over_is_freed_without_the_garbage_collector(kind: str, tmp_path: Path) -> None:
    with serving(tmp_path, max_source=48, positions=1000) as service:
        check_freed(service, **REQUESTS[kind])


def test_a_request_whose_step_fails_is_freed_too(tmp_path: Path) -> None:
    with serving(tmp_path, fails=True) as service:
        check_freed(service, text=".")
