"""How long requests of a served generator take beside others: long prompts, wide beams, documents."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.cases import FAQ, TIMEOUT, Served, callers
from bench.client import run_figures
from bench.command import Settings
from bench.exports import NAME
from bench.figures import Figures, Goal, take_turns
from hfx.client import Client
from hfx.errors import HfxError, LoadFailed
from hfx.names import LONG, MAX_TOKENS, MIN_TOKENS, NUM_BEAMS, TEXT_INPUT
from hfx.perf.load import Closed, Limits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec, Target, measure, server_target
from hfx.triton import EmbeddedServer

COLUMNS = ("requests/s", "p50 ms", "p99 ms")
START_SECONDS = 60.0  # until the others have their first answer or piece
KB = 1000


@dataclass(frozen=True)
class Ask:
    """The same request again and again by so many callers: a text of `characters`, `settings` beside greedy search."""

    name: str
    callers: int
    characters: int
    new: int = 16
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its text, of whole sentences but for its end."""
        sentences = " ".join(context for context, _ in FAQ)
        return (sentences * (self.characters // len(sentences) + 1))[: self.characters]

    @property
    def values(self) -> dict[str, Any]:
        """Its settings."""
        return {MAX_TOKENS: self.new, MIN_TOKENS: self.new, NUM_BEAMS: 1, **self.settings}


@dataclass(frozen=True)
class Trial:
    """Each of `measured` on a server of `model`: alone, and beside each of `others`."""

    model: Served
    measured: tuple[Ask, ...]
    others: tuple[Ask, ...]
    requests: int


def document(characters: int, **settings: Any) -> Ask:
    """One caller's text that is divided into parts."""
    name = f"a document of {characters // KB} KB" if characters < 1000 * KB else f"one of {characters / KB / KB:g} MB"
    return Ask(name, 1, characters, settings={LONG: "chunk", **settings})


ALONE = "alone"
SMALL = Ask(f"{callers(4)}, 16 tokens", 4, 120)
DOCUMENTS = tuple(document(size * KB) for size in (8, 30, 100))
HUGE = document(15_000 * KB)
BEAMS, PROMPTS = Ask("4 x 16 beams", 4, 120, settings={NUM_BEAMS: 16}), Ask("4 long prompts", 4, 3500)
GPT2 = Served("distilgpt2", slots=32)
# The shape of distilbart's smaller kind: a part of 1,000 tokens takes a tenth of a second.
BART = Served("bart-large-cnn", slots=32, layers=(
    ("d_model", 256), ("encoder_layers", 3), ("decoder_layers", 3), ("encoder_attention_heads", 4),
    ("decoder_attention_heads", 4), ("encoder_ffn_dim", 1024), ("decoder_ffn_dim", 1024),
))  # fmt: skip
TRIALS = (
    Trial(GPT2, (SMALL,), (PROMPTS, BEAMS), 400),
    Trial(BART, (SMALL,), (document(300 * KB),), 400),
    Trial(BART, DOCUMENTS, (HUGE,), 12),
)


def interference(settings: Settings, figures: Figures) -> None:
    """Every request alone and beside the others, in turn."""
    for trial in TRIALS:
        repository = trial.model.repository("int8", settings.quick)
        with EmbeddedServer(repository, models=[NAME]) as server:
            target, count = server_target(server, NAME), trial.requests // (4 if settings.quick else 1)
            others = {ALONE: None, **{f"beside {other.name}": other for other in trial.others}}
            ways = {name: partial(_measured, server, target, other, count) for name, other in others.items()}
            cases = {f"{trial.model.shape}, {ask.name}": ask for ask in trial.measured}
            take_turns(figures, trial.model.shape, cases, ways, settings.turns(3))


def _measured(server: EmbeddedServer, target: Target, other: Ask | None, count: int, ask: Ask) -> dict[str, Any]:
    requests = RequestSet((Request({TEXT_INPUT: (ask.text,), **{k: (v,) for k, v in ask.values.items()}}),), ask.name)
    limits = Limits(requests=count, warmup_requests=ask.callers, timeout=TIMEOUT)
    with ExitStack() as stack:
        if other is not None:
            stack.enter_context(_running(server.grpc_url, other))
        return run_figures(measure(target, Closed(ask.callers), MeasureSpec(requests, limits)))


class _Callers:
    """Callers who send `ask` without a pause until `end`, which cancels what is under way."""

    def __init__(self, client: Client, ask: Ask) -> None:
        self._client = client
        self._ask = ask
        self._ended = threading.Event()
        self.begun = threading.Event()  # an answer or a piece has come, or a failure
        self.failures: list[HfxError] = []
        self._threads = [threading.Thread(target=self._call) for _ in range(ask.callers)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Return when all have ended."""
        self._ended.set()
        self._client.close()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        try:
            while not self._ended.is_set():
                with self._client.stream(NAME, self._ask.text, timeout=TIMEOUT, **self._ask.values) as pieces:
                    for _ in pieces:
                        self.begun.set()
        except HfxError as error:
            if not self._ended.is_set():
                self.failures.append(error)
                self.begun.set()


@contextmanager
def _running(url: str, ask: Ask) -> Iterator[None]:
    """While callers send `ask`. Raises LoadFailed, and what the server refuses them with."""
    with Client(url, retries=0) as client:
        others = _Callers(client, ask)
        try:
            if not others.begun.wait(START_SECONDS):
                raise LoadFailed(f"{ask.name} had no answer in {START_SECONDS:g} s.", "Use a smaller model.")
            yield
        finally:
            others.end()
    if others.failures:
        raise others.failures[0]


GOALS = tuple(
    Goal(f"{trial.model.shape}, {ask.name}", "p50 ms" if ask in DOCUMENTS else "p99 ms", (f"beside {other.name}",),
         most=2.0 if ask in DOCUMENTS else 3.0, against=(ALONE,))
    for trial in TRIALS for ask in trial.measured for other in trial.others
)  # fmt: skip
