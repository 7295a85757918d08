"""Recovery from a death: the model is replaced while the others serve, or the whole server is started again.

Both have a back-off. If replacing a model fails, it is tried again while the others serve. A model that dies again and
again causes a restart of the server, because each death leaves something behind in Triton 2.51 (a process entry, a
megabyte).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hfx.errors import ServerError
from hfx.triton.liveness import Death
from hfx.triton.loaded_models import LoadedModels
from hfx.triton.log import CrashedAtStart
from hfx.triton.server import Server

MAX_RESTARTS = 10  # after this many failures in a row, another start won't help
MAX_SWAPS = 3  # of one model in a row
MAX_LOST = 50  # after this many swaps of all models together, the server is started again
HEALTHY_SECONDS = 20.0  # a fault after this time in service is independent of earlier faults
MAX_PAUSE_SECONDS = 30.0
SLOW_RESTART_SECONDS = 3.0

Report = Callable[[str], None]


@dataclass
class _Row:
    """A row of attempts: how many succeeded (`done`) and how many `failed`. The next one is not made before `due`."""

    done: int = 0
    failed: int = 0
    due: float = 0.0
    last: float = 0.0

    def begin(self) -> None:
        """Note that an attempt begins. It starts a new row if the last one succeeded more than HEALTHY_SECONDS ago."""
        if not self.failed and time.monotonic() - self.last > HEALTHY_SECONDS:
            self.done = 0

    def succeed(self) -> None:
        """Note that the attempt succeeded."""
        self.done, self.failed, self.last = self.done + 1, 0, time.monotonic()

    def fail(self) -> None:
        """Note that the attempt failed."""
        self.failed += 1
        self.due = time.monotonic() + pause(self.failed)


class Recovery:
    """Recovers `server` from deaths, and reports each with a line to `report`."""

    def __init__(self, server: Server, report: Report) -> None:
        self._server = server
        self._report = report
        self._restarts = _Row()
        self._swaps: dict[tuple[str, ...], _Row] = {}
        self.attempts = 0  # to replace a model or restart the server

    def due(self, deaths: Sequence[Death]) -> list[Death]:
        """Return those of `deaths` whose pause before the next attempt is over, each model once."""
        now = time.monotonic()
        by_models = {death.models: death for death in reversed(deaths)}
        return [death for death in by_models.values() if self._row(death.models).due <= now]

    def verdict(self, deaths: Sequence[Death]) -> str:
        """Return the reason why the server is not in service because of `deaths`; empty if it is in service.

        A model counts as left out after MAX_RESTARTS failed attempts in a row, as the other models are served.
        """
        by_models = {death.models: death.reason for death in reversed(deaths)}
        return "; ".join(why for models, why in by_models.items() if self._row(models).failed < MAX_RESTARTS)

    def recover(self, deaths: Sequence[Death]) -> None:
        """Replace the dead models, or restart the server.

        Raises ServerError if this has failed too often in a row, and no model is served any longer.
        """
        loaded = self._server.replaceable
        if loaded is not None and all(self._is_swapped(death.models, loaded) for death in deaths):
            for death in deaths:
                self._swap(death, loaded)
        else:
            self._restart("; ".join(death.reason for death in deaths))

    def _row(self, models: tuple[str, ...]) -> _Row:
        return self._swaps.setdefault(models, _Row())

    def _is_swapped(self, models: tuple[str, ...], loaded: LoadedModels) -> bool:
        row = self._row(models)
        row.begin()
        lost = sum(swaps.done for swaps in self._swaps.values())
        return bool(models) and row.done < MAX_SWAPS and lost < MAX_LOST and loaded.can_swap(models)

    def _swap(self, death: Death, loaded: LoadedModels) -> None:
        began, row = time.monotonic(), self._row(death.models)
        self.attempts += 1
        try:
            with after(SLOW_RESTART_SECONDS, lambda: self._report(f"{death.reason}; loading it again.")):
                loaded.swap(death.models)
        except ServerError as error:
            row.fail()
            if self._server.deaths() and not self._server.deaths()[0].models:
                return  # the whole server has died
            self._failed(death.reason, row.failed, error)
            if row.failed >= MAX_RESTARTS and not loaded.others_serve(death.models):
                raise _hopeless(error) from error
            if row.failed == MAX_RESTARTS:
                self._report(f"{death.reason}; it is tried again every {MAX_PAUSE_SECONDS:g} s, without a line.")
        else:
            row.succeed()
            self._report(f"{death.reason}; serving again after {time.monotonic() - began:.1f} s.")

    def _restart(self, reason: str) -> None:
        """Restart the server until it serves.

        A server that comes to serve and dies again is restarted without a limit, as requests may have killed it. Raises
        ServerError if MAX_RESTARTS restarts in a row have failed, unless a signal ended the server while it started.
        """
        began, row = time.monotonic(), self._restarts
        row.begin()
        while True:
            time.sleep(pause(row.done + row.failed))
            self.attempts += 1
            try:
                with after(SLOW_RESTART_SECONDS, lambda: self._report(f"{reason}; starting again.")):
                    self._server.restart()
            except ServerError as error:
                row.fail()
                self._failed(reason, row.failed, error)
                if row.failed >= MAX_RESTARTS and not isinstance(error, CrashedAtStart):
                    raise _hopeless(error) from error
            else:
                row.succeed()
                self._swaps.clear()
                self._report(f"{reason}; serving again after {time.monotonic() - began:.1f} s.{_row_of(row.done)}")
                return

    def _failed(self, reason: str, number: int, error: ServerError) -> None:
        why = " ".join(error.message.splitlines()[:2])
        if number <= MAX_RESTARTS:
            self._report(f"{reason}; restart {number} of {MAX_RESTARTS} failed: {why}")


def _row_of(restarts: int) -> str:
    """Return what to add to the report on the last of many `restarts` in a row."""
    if restarts < MAX_RESTARTS:
        return ""
    return (
        f" That was restart {restarts} in a row: from now on the pause before one is up to {MAX_PAUSE_SECONDS:g} s. "
        "Is the memory of this machine enough, or does a client send requests that end Triton?"
    )


def _hopeless(failure: ServerError) -> ServerError:
    return ServerError(f"{MAX_RESTARTS} restarts in a row did not help: {failure.message}", failure.fix)


def pause(restarts: int) -> float:
    """Return the seconds before the next restart after this number of restarts in a row. The first has no pause."""
    return random.uniform(0.5, 1.0) * min(MAX_PAUSE_SECONDS, 2.0 ** min(restarts - 1, 10)) if restarts else 0.0


@contextmanager
def after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` in another thread if the body takes longer than `seconds`."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
