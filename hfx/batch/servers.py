"""One model behind one or several servers: each request goes to the least loaded, and again to another if one fails.

What a server refuses is a fact about the request. That it is unreachable, busy, or fails says nothing about the
request, which is sent again until no server has answered anything for the time that is allowed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hfx.answering import Answer, Model, Request, pause
from hfx.errors import (
    ModelUnknown,
    RequestCancelled,
    RequestRefused,
    RequestTimeout,
    ServerBusy,
    ServerError,
    ServerUnreachable,
)

SHORTEST, LONGEST = 0.1, 5.0  # seconds until a server that failed gets another request
# Statuses by which a server refuses one request; other refusals (a wrong token, say) hold for all of them.
REFUSALS = frozenset(
    {"", "INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "400", "413"}
)


@dataclass(frozen=True)
class Persistence:
    """How long a request is sent again.

    It ends after `patience` seconds in which no server answers anything. After the first failure and `retries` further
    ones, each of a server that had answered another request since the one before, the request itself is taken to be the
    reason; at the last one it is the only request that is sent. Taking longer than `row_timeout` seconds is a failure.
    """

    patience: float = 300.0
    retries: int = 3
    row_timeout: float | None = None


class Server:
    """A model behind one address; how many requests it gets at a time follows from what it takes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.in_flight = 0
        self.limit = float(model.at_once)
        self.pause = 0.0
        self.next = 0.0  # when it may get a request again
        self.may_differ = False  # it was away: perhaps it has another model now
        self.unchecked = False  # it has answered since its model was last compared

    def succeeded(self) -> None:
        """Allow a little more: one request more for each round of as many."""
        self.pause = 0.0
        self.limit = min(self.model.at_once, self.limit + 1 / self.limit)

    def failed(self, now: float, busy: bool) -> None:
        """Wait longer each time; a busy server gets half as many requests at a time."""
        self.may_differ = self.may_differ or not busy
        if now < self.next:
            return  # another request has failed at the same time
        self.pause = SHORTEST if busy else min(LONGEST, max(SHORTEST, 2 * self.pause))
        self.next = now + self.pause
        if busy:
            self.limit = max(1.0, self.limit / 2)

    def is_unchanged(self) -> bool:
        """Whether it has the model that it had at first; false where it doesn't say. Raises ModelChanged."""
        is_same = self.model.is_unchanged()
        self.may_differ = self.may_differ and not is_same
        return is_same


class Servers:
    """Answers requests from many threads.

    `answer` raises RequestRefused for a fact about the request, and another ServerError where the run has to end: at
    once for a model that is gone and does not come back (`returns` is false: one of this process).
    """

    def __init__(self, models: Sequence[Model], persistence: Persistence, returns: bool) -> None:
        self._servers = [Server(model) for model in models]
        self._persistence = persistence
        self._returns = returns
        self._changed = threading.Condition()
        self._alone: object | None = None  # the request that must be the only one
        self._last_answer = self._last_sound = time.monotonic()  # to a row of the job; to any request
        self._answered: Request | None = None  # the last one that was
        self._unsure = 0  # times in a row that it could not be told which model had answered

    def answer(self, request: Request) -> Answer:
        """The answer of one of the servers."""
        began, failures, failed = time.monotonic(), 0, 0.0
        decisive = max(1, self._persistence.retries)
        while True:
            alone = failed > 0 and failures + 1 >= decisive
            server = self._acquire(request, alone)
            is_sound = False
            try:
                if server.may_differ and not server.is_unchanged():
                    raise ServerUnreachable("The server does not say which model it has.", "Is it up?")
                if failed:
                    is_sound = (self._last_sound > failed and not alone) or self._probe(server)
                answer = server.model.answer(request)
                server.unchecked = True
            except (RequestRefused, ServerError) as error:
                self._release(server, request, error)
                self._check(error, began)
                failed = time.monotonic()
                failures += is_sound and self._counts(error)
                if failures >= decisive:
                    raise RequestRefused(self._fact(error)) from error
            except BaseException:
                self._release(server, request, None)
                raise
            else:
                self._release(server, request, None)
                self._last_answer = self._last_sound = time.monotonic()
                self._answered = request
                return answer

    def is_unchanged(self) -> bool:
        """Whether all that was answered since the last call is the first model's.

        False where that can't be told, because a server is away: ask again what it may have answered. Raises
        ModelChanged, and ServerError when this has happened too often.
        """
        asked = [server for server in self._servers if server.unchecked]
        for server in asked:
            server.unchecked = False  # before it is looked: what is answered meanwhile counts for the next call
        away = [server for server in asked if not server.is_unchanged()]
        for server in away:
            server.failed(time.monotonic(), busy=False)
        self._unsure = self._unsure + 1 if away else 0
        if self._unsure > max(1, self._persistence.retries):
            raise ServerUnreachable(
                "A server does not say which model it has, each time that it has answered.",
                "Nothing is lost: `hfx batch resume` continues the job, with other addresses if need be.",
            )
        return not away

    def _probe(self, server: Server) -> bool:
        """Whether `server` answers again what was answered before; False where nothing was. Raises ServerError."""
        if self._answered is None:
            return False
        try:
            server.model.answer(self._answered)
        except RequestRefused as error:
            raise of_server(error) from error
        self._last_sound = time.monotonic()
        return True

    def _counts(self, error: ServerError) -> bool:
        """Whether a failure of a server that was sound before may be the request's own fault."""
        if isinstance(error, RequestTimeout):
            return self._persistence.row_timeout is not None
        return not isinstance(error, ServerBusy | ModelUnknown | RequestCancelled)

    def _fact(self, error: ServerError) -> str:
        """What is wrong with a request at which sound servers fail; without an address, which varies between runs."""
        if isinstance(error, RequestTimeout):
            return f"It takes longer than {self._persistence.row_timeout:g} s."
        if isinstance(error, ServerUnreachable):
            return "The server ends at it every time."
        return f"The server fails at it: {error.message}"

    def _check(self, error: ServerError, began: float) -> None:
        """Raise what ends the tries."""
        if isinstance(error, RequestRefused) and not isinstance(error, ModelUnknown):
            raise error if error.status in REFUSALS else of_server(error)
        if isinstance(error, ServerUnreachable) and not self._returns:
            raise error
        waited = time.monotonic() - max(began, self._last_answer)
        if waited > self._persistence.patience:
            raise gave_up(error, waited) from error

    def _acquire(self, request: Request, alone: bool) -> Server:
        """The least loaded server that may get a request now; waits for one."""
        while True:
            with self._changed:
                now = time.monotonic()
                if server := self._free(request, alone, now):
                    server.in_flight += 1
                    if alone:
                        self._alone = request
                    return server
                soonest = min((server.next for server in self._servers), default=now)
                self._changed.wait(min(max(soonest - now, 0.01), 0.5))
            pause(0.0)  # raises where the run is over

    def _free(self, request: Request, alone: bool, now: float) -> Server | None:
        if self._alone is not None and self._alone is not request:
            return None
        if alone and any(server.in_flight for server in self._servers):
            self._alone = request  # no others begin meanwhile
            return None
        free = [s for s in self._servers if s.next <= now and s.in_flight < max(1, int(s.limit))]
        return min(free, key=lambda server: server.in_flight / server.limit, default=None)

    def _release(self, server: Server, request: Request, error: ServerError | None) -> None:
        with self._changed:
            server.in_flight -= 1
            if self._alone is request:
                self._alone = None
            refused = isinstance(error, RequestRefused) and not isinstance(error, ModelUnknown)
            if error is None or (refused and error.status in REFUSALS):
                server.succeeded()
            else:
                server.failed(time.monotonic(), isinstance(error, ServerBusy))
            self._changed.notify_all()


def gave_up(error: ServerError, waited: float) -> ServerError:
    """`error` as the end of a run."""
    fix = "Nothing is lost: when it serves again, `hfx batch resume` of the job's folder; --patience waits longer."
    return of_server(error.with_message(f"No server has answered for {waited:.0f} s. {error.message}"), fix)


def of_server(error: ServerError, fix: str = "") -> ServerError:
    """`error` as a fact about the server, and about no request."""
    kind = ServerError if isinstance(error, RequestRefused) else type(error)
    return kind(error.message, fix or error.fix, status=error.status, model=error.model)


def persistent(models: Sequence[Model], persistence: Persistence, returns: bool = True) -> Model:
    """One Model of several of the same name, with the answers of `Servers`."""
    first = models[0]
    at_once = sum(model.at_once for model in models)
    servers = Servers(models, persistence, returns)
    return replace(first, answer=servers.answer, stream=None, at_once=at_once, is_unchanged=servers.is_unchanged)
