"""Ten minutes of mixed callers (or $HFX_SOAK_SECONDS): no process of the server grows, and every text stays right."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.triton import toy_models
from tests.triton.generation_asks import Answer, Ask, AskFailed
from tests.triton.generation_http import post
from tests.triton.generation_rig import DOORS, RECITAL, STREAMS, WRITERS, all_free, in_process, wait_until
from tests.triton.reciting import ENDLESS
from tests.triton.test_generation_equality import mixed_asks
from tests.triton.usage import Usage, grown, usage

pytestmark = pytest.mark.triton

SECONDS = float(os.environ.get("HFX_SOAK_SECONDS", "600"))
CALLERS = 12
CONTROL_SECONDS = 2.4
EACH_SECONDS = 0.06

LEAKING = """
import os
import threading
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb.get_input_tensor_by_name(request, "text_input")
        order = text.as_numpy()[0, 0].decode().strip()
        if order == "rss":
            self.kept.append(bytearray(os.urandom(1 << 17)))
        elif order == "fds":
            self.kept.append(os.open("/dev/null", os.O_RDONLY))
        elif order == "threads":
            self.kept.append(threading.Thread(target=threading.Event().wait, daemon=True))
            self.kept[-1].start()
        elif order == "shared memory":
            self.kept.append(request)  # with its tensors, which lie there
        return pb.InferenceResponse([pb.Tensor("label", text.as_numpy())])
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "label" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@contextmanager
def in_the_background(calls: list[Callable[[], None]]) -> Iterator[None]:
    """Each of `calls` again and again, in a thread of its own, until the block ends; what one raises is raised."""
    over = threading.Event()

    def repeat(call: Callable[[], None]) -> None:
        while not over.is_set():
            call()

    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(repeat, call) for call in calls]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


def watched(server: EmbeddedServer, seconds: float, every: float) -> list[Usage]:
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(usage(server))
        time.sleep(every)
    return found


def faithful(server: EmbeddedServer, pairs: list[tuple[str, Ask, Answer]]) -> Callable[[], None]:
    """A caller who checks each answer."""
    turns = itertools.cycle(pairs)

    def call() -> None:
        door, ask, wanted = next(turns)
        assert DOORS[door](server, ask) == wanted

    return call


def leaving(server: EmbeddedServer, door: str) -> Callable[[], None]:
    """A caller who leaves midway."""

    def call() -> None:
        with STREAMS[door](server, Ask(RECITAL, "a", ENDLESS)) as events:
            assert len(list(islice(events, 5))) == 5

    return call


def refused(server: EmbeddedServer, door: str) -> Callable[[], None]:
    """A caller of whom nothing can be accepted, or not for long."""
    late = {**ENDLESS, "timeout_ms": 20}
    settings = itertools.cycle([{"num_beams": 0}, {"max_tokens": 9000}, {"long": "chunk"}, late])

    def call() -> None:
        with pytest.raises(AskFailed):
            DOORS[door](server, Ask(RECITAL, "a", next(settings)))
        time.sleep(0.05)

    return call


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_grows_and_no_text_changes(writers: Path) -> None:
    asks = mixed_asks()
    answers = in_process(writers, [ask for _, ask in asks])
    checked = [(door, ask, answers[number]) for number, (door, ask) in enumerate(asks)]
    with EmbeddedServer(writers) as server:
        calls = [faithful(server, checked[caller::CALLERS]) for caller in range(CALLERS)]
        calls += [leaving(server, door) for door in STREAMS]
        calls += [refused(server, door) for door in ("/generate", "/generate of the engine")]
        with in_the_background(calls):
            usages = watched(server, SECONDS, every=max(0.5, SECONDS / 600))
        for name in (*WRITERS, RECITAL):
            wait_until(lambda name=name: all_free(server, name), f"the slots of {name} are free", 10)
        report(usages)
        assert grown(usages) == {}


def report(usages: list[Usage]) -> None:
    for key in sorted(usages[-1].figures):
        figures = [each.figures.get(key, 0) for each in usages]
        print(key, [figures[len(figures) * tenth // 10] for tenth in range(10)], figures[-1])


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("leaking")
    toy_models.write_model(folder, "leaking", CONFIG, LEAKING)
    with EmbeddedServer(folder) as running:
        yield running


@pytest.mark.parametrize("resource", ["nothing", "rss", "fds", "threads", "shared memory"])
def test_a_model_that_leaks_on_purpose_is_caught(resource: str, leaking: EmbeddedServer) -> None:
    """Whatever else a leak costs: a thread has a stack."""
    body = b'{"text_input": "%s"}' % resource.ljust(1 << 16).encode()

    def call() -> None:
        post(leaking, "leaking/generate", body)
        time.sleep(0.005)

    with in_the_background([call]):
        usages = watched(leaking, CONTROL_SECONDS, EACH_SECONDS)
    found = {kind for _, kind in grown(usages)}
    assert resource in found if resource != "nothing" else not found
