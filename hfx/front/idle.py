"""Unloads models while no request needs them, and loads them again for the next request.

This module counts requests. The process that watches Triton loads and unloads the models (triton/residency.py), one at
a time, on commands that it gets through a socket. A model is unloaded only while it has no request in progress. Later
requests that need the model wait for a single load, which continues even if their clients disconnect.

Triton 2.51 loads a model in a thread of its HTTP server, and during the load it does not answer on the connections of
that thread. The thread is the same for all loads, so connections that are found silent during a load are closed
(Upstream.drop_silent).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.front.metrics import LOAD_WAIT, LOADED, LOADS, MODEL_BYTES, UNLOADS, Samples
from hfx.front.refusals import RETRY, Refusal
from hfx.front.routes import named
from hfx.front.upstream import Upstream, short_path

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection

CHECK_SECONDS = 1.0
FAILED_SECONDS = 1.0  # before a model that did not load is tried again
WAIT_SECONDS = 60.0
LOAD_TRIES = 2  # a model that ends Triton is not loaded again and again
RESTART_SECONDS = 0.5  # between attempts to connect to Triton while it restarts
ANSWER_BYTES = 1 << 28  # for the descriptions of all models
ROUTE = "/v2/models/{model}"
THREAD_SECONDS = 0.1  # until a load occupies its thread; before that, memory is measured for 20 ms
USES = ("/infer", "/generate", "/generate_stream")


class TritonEnded(Refusal):
    """Triton ended before it had loaded or unloaded a model. It is being started again."""


@dataclass(eq=False)
class Model:
    """The state of a model.

    `folders` are the folders that it needs. `described` maps the ends of paths to Triton's descriptions of the model.
    `in_flight` is the number of requests that need it, and `used_at` when the last one ended (time.monotonic).
    """

    name: str
    folders: Sequence[str] = ()
    is_loaded: bool = True
    described: Mapping[str, str] = field(default_factory=dict)
    in_flight: int = 0
    used_at: float = field(default_factory=lambda: time.monotonic())  # not bound here: tests replace it
    loading: asyncio.Task[None] | None = None
    failed_at: float = -FAILED_SECONDS
    failure: str = ""
    loads: int = 0
    unloads: int = 0
    waited: float = 0.0  # seconds, of all requests


class IdleModels:
    """The models of `upstream`, which are loaded and unloaded by commands to the socket `commands`.

    A model that was not used for `unload_after` seconds is unloaded (0: never). Together, the loaded models may take
    `budget` bytes (0: no limit). A request waits at most `wait_seconds` for a load.
    """

    def __init__(
        self, upstream: Upstream, commands: str, unload_after: float, budget: int, wait_seconds: float
    ) -> None:
        self._upstream = upstream
        self._thread_taken_at = 0.0
        self._commands = short_path(Path(commands))
        self._unload_after = unload_after
        self._budget = budget
        self._wait_seconds = min(wait_seconds, WAIT_SECONDS)
        self._version = -1
        self._bytes: dict[str, int] = {}  # by folder
        self._by_folder: dict[str, Model] = {}
        self.models: dict[str, Model] = {}
        self._changing = asyncio.Lock()
        self._released = asyncio.Event()  # set when a model has no more requests, or is unloaded for another one

    @property
    def unloaded(self) -> list[str]:
        """The names of the models that are not in memory."""
        return [model.name for model in self.models.values() if not model.is_loaded]

    def unloaded_answer(self, path: bytes) -> bytes | None:
        """Return the stored answer to a GET of `path` about an unloaded model; None if there is none."""
        route, name = named(path)
        model = self.models.get(name)
        if model is None or model.is_loaded:
            return None
        text = {"/ready": "", **model.described}.get(route.removeprefix(ROUTE))
        return None if text is None else text.encode()

    def bytes_of(self, models: Collection[Model]) -> int:
        """Return the bytes that `models` together take in memory."""
        return sum(self._bytes.get(folder, 0) for folder in {folder for model in models for folder in model.folders})

    def samples(self) -> Samples:
        """Return the state, memory, loads, unloads and waiting times of the models as metrics."""
        models = {(model.name,): model for model in self.models.values()}
        return {
            LOADED: {key: int(model.is_loaded) for key, model in models.items()},
            MODEL_BYTES: {key: self.bytes_of([model]) for key, model in models.items()},
            LOADS: {key: model.loads for key, model in models.items()},
            UNLOADS: {key: model.unloads for key, model in models.items()},
            LOAD_WAIT: {key: model.waited for key, model in models.items()},
        }

    async def start(self) -> None:
        """Get the table of models, and start a task that keeps it current and unloads idle models."""
        with suppress(Refusal):
            await self._command("table")
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            with suppress(Refusal):  # the other process is ending
                async with self._changing:
                    await self._command("table")
                await self._unload_idle()

    @asynccontextmanager
    async def used(self, path: bytes, client: ClientConnection | None) -> AsyncIterator[bytes | None]:
        """Return a context in which the model of a request to `path` is loaded, or else its description is yielded.

        Requests that use a model load it. For others, an unloaded model has a stored answer, as Triton does not know
        it; a loaded model stays loaded until the answer has come. Raises Refusal (503).
        """
        route, name = named(path)
        if (pause := self._thread_taken_at - time.monotonic()) > 0:  # a load's thread gets no new connection
            await asyncio.sleep(pause)
        model, is_use = self._by_folder.get(name), route.endswith(USES)
        stored = None if is_use else self.unloaded_answer(path)
        if model is None or stored is not None:
            yield stored
            return
        model.in_flight += 1
        try:
            if is_use and not model.is_loaded:
                await self._wait(model, client)
            yield None
        finally:
            model.in_flight -= 1
            if is_use:
                model.used_at = time.monotonic()
            if not model.in_flight:
                self._released.set()

    async def _wait(self, model: Model, client: ClientConnection | None) -> None:
        if client is None:  # requests of the front itself must not load models
            raise _unavailable(f"The model {model.name} is not loaded.")
        if time.monotonic() - model.failed_at < FAILED_SECONDS:
            raise Refusal(503, model.failure, [RETRY])
        began = time.monotonic()
        try:
            if model.loading is None:
                model.loading = asyncio.create_task(self._load(model))
                model.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
            async with asyncio.timeout(self._wait_seconds):
                await asyncio.shield(model.loading)
        except TimeoutError:
            raise _unavailable(self._reason(model)) from None
        finally:
            model.waited += time.monotonic() - began

    def _reason(self, model: Model) -> str:
        if self._fits(model):
            return f"The model {model.name} is still being loaded after {self._wait_seconds:g} s."
        users = ", ".join(other.name for other in self._loaded() if other.in_flight)
        return f"The memory budget has no room for the model {model.name} beside those with requests: {users}."

    # Loading and unloading

    async def _load(self, model: Model) -> None:
        """Load `model` for the requests that wait for it, and note a failure. Raises Refusal (503)."""
        try:
            await self._load_when_possible(model)
        except Refusal as refusal:
            model.failed_at, model.failure = time.monotonic(), refusal.message
            raise
        finally:
            model.loading = None

    async def _load_when_possible(self, model: Model) -> None:
        """Try to load `model` until it is loaded, or until no request waits for it any more.

        If a load ends Triton, it is tried again, LOAD_TRIES times in all. Raises Refusal (503), also TritonEnded.
        """
        ends = 0
        while model.in_flight:
            self._released.clear()  # before the attempt, so that no later release is missed
            try:
                if await self._try_to_load(model):
                    return
                await self._released.wait()
            except TritonEnded:
                ends += 1
                if ends == LOAD_TRIES:
                    raise
                await self._triton_restarted()

    async def _try_to_load(self, model: Model) -> bool:
        """Load `model` if it fits, and return whether it is loaded. Raises Refusal (503).

        If it does not fit, unload another model if that can help.
        """
        async with self._changing:
            if model.is_loaded:
                return True
            if self._fits(model):
                self._thread_taken_at = time.monotonic() + THREAD_SECONDS
                self._dropping = asyncio.create_task(self._upstream.drop_silent())
                await self._command("load", model)
                model.loads += 1
                return True
            if (other := self._unloadable_for(model)) is not None:
                await self._unload(other)
                self._released.set()
            return False

    async def _triton_restarted(self) -> None:
        """Wait until Triton, which has ended, takes connections again."""
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            with suppress(OSError):
                (await self._upstream.connect()).release()
                return

    async def _unload(self, model: Model) -> None:
        model.is_loaded = False  # before the command, so that a request that comes meanwhile loads it again
        await self._command("release", model)
        model.unloads += 1

    async def _unload_idle(self) -> None:
        """Unload models that were not used for long enough, and models beyond the budget."""
        for model in self._loaded():
            async with self._changing:
                is_over = 0 < self._budget < self.bytes_of(self._loaded())
                is_old = 0 < self._unload_after <= time.monotonic() - model.used_at
                if (is_over or is_old) and model.is_loaded and not model.in_flight:
                    await self._unload(model)

    def _loaded(self) -> list[Model]:
        """Return the models in memory, in the order in which they were last used."""
        return sorted((model for model in self.models.values() if model.is_loaded), key=lambda model: model.used_at)

    def _fits(self, model: Model) -> bool:
        loaded = self._loaded()
        return not self._budget or not loaded or self.bytes_of([*loaded, model]) <= self._budget

    def _unloadable_for(self, model: Model) -> Model | None:
        """Return an idle model to unload before `model` is loaded.

        Return None if there is none, or if the models with requests leave no room for `model` anyway.
        """
        loaded = self._loaded()
        busy = [other for other in loaded if other.in_flight]
        if busy and self.bytes_of([*busy, model]) > self._budget:
            return None
        return next((other for other in loaded if not other.in_flight), None)

    async def _command(self, command: str, *models: Model) -> None:
        """Have the other process execute `command`, and store its table of models. Raises Refusal (503) if it fails."""
        version = -1 if models else self._version
        content = {"command": command, "models": [model.name for model in models], "version": version}
        try:
            reader, writer = await asyncio.open_unix_connection(self._commands, limit=ANSWER_BYTES)
            with closing(writer):
                writer.write(json.dumps(content).encode() + b"\n")
                answer = json.loads(await reader.readline())
        except (OSError, ValueError):
            raise _unavailable("The process that loads models does not answer.") from None
        if "error" in answer:
            raise _unavailable(answer["error"], TritonEnded if answer.get("has_ended") else Refusal)
        if answer:
            self._take(answer)

    def _take(self, table: Mapping[str, Any]) -> None:
        self._version, self._bytes = table["version"], table["bytes"]
        self.models = {name: self.models.get(name) or Model(name) for name in table["models"]}
        for name, row in table["models"].items():
            model = self.models[name]
            model.folders, model.is_loaded, model.described = row["folders"], row["is_loaded"], row["described"]
        self._by_folder = {folder: model for model in self.models.values() for folder in model.folders} | self.models


def _unavailable(message: str, kind: type[Refusal] = Refusal) -> Refusal:
    return kind(503, f"{message.rstrip('.')}. Try again later.", [RETRY])
