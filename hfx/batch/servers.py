"""One model behind several servers. A request goes to the least loaded server, and after a failure to another server.

A refusal (RequestRefused) is about the request, and becomes its error row. Other failures are about the server: the
request is retried until no server has answered anything for `Persistence.patience` seconds.
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

SHORTEST, LONGEST = 0.1, 5.0  # seconds before a server that failed gets another request
# Statuses of refusals that concern one request. Other refusals, such as of a wrong token, concern all requests.
REFUSALS = frozenset(
    {"", "INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "400", "413"}
)


@dataclass(frozen=True)
class Persistence:
    """How long failed requests are retried.

    The run ends after `patience` seconds in which no server has answered anything. The request itself is blamed after
    its first failure and `retries` further failures, each on a server that had answered another request in between;
    during the last try it is the only request in flight. An answer that takes longer than `row_timeout` seconds is a
    failure.
    """

    patience: float = 300.0
    retries: int = 3
    row_timeout: float | None = None


class Server:
    """The model at one address. `limit`, the largest number of requests in flight, adapts to the server."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.in_flight = 0
        self.limit = float(model.at_once)
        self.pause = 0.0
        self.next = 0.0  # the time.monotonic() from which the server may get requests again
        self.may_differ = False  # it was unreachable, and may have another model now
        self.unchecked = False  # it has answered since its model was last checked

    def succeeded(self) -> None:
        """Raise the limit, by one request per `limit` successes."""
        self.pause = 0.0
        self.limit = min(self.model.at_once, self.limit + 1 / self.limit)

    def failed(self, now: float, busy: bool) -> None:
        """Pause the server, longer each time. If it is `busy`, also halve its limit."""
        self.may_differ = self.may_differ or not busy
        if now < self.next:
            return  # another request failed at the same time
        self.pause = SHORTEST if busy else min(LONGEST, max(SHORTEST, 2 * self.pause))
        self.next = now + self.pause
        if busy:
            self.limit = max(1.0, self.limit / 2)

    def is_unchanged(self) -> bool:
        """Return whether the server still has its first model; false if it does not report its model.

        Raises ModelChanged.
        """
        is_same = self.model.is_unchanged()
        self.may_differ = self.may_differ and not is_same
        return is_same


class Servers:
    """Answers requests from many threads.

    `answer` raises RequestRefused if the request itself is to blame, and another ServerError if the run must end.
    `returns` says whether an unreachable model may become reachable again; if not, as for a model in this process, the
    run ends at once.
    """

    def __init__(self, models: Sequence[Model], persistence: Persistence, returns: bool) -> None:
        self._servers = [Server(model) for model in models]
        self._persistence = persistence
        self._returns = returns
        self._changed = threading.Condition()
        self._alone: object | None = None  # the request that must be the only one in flight
        self._last_answer = self._last_sound = time.monotonic()  # times of the last answer to a row, and to any request
        self._answered: Request | None = None  # the last request that was answered
        self._unsure = 0  # consecutive checks in which a server did not report its model

    def answer(self, request: Request) -> Answer:
        """Return the answer to `request` from one of the servers."""
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
                    raise RequestRefused(self._request_fault(error)) from error
            except BaseException:
                self._release(server, request, None)
                raise
            else:
                self._release(server, request, None)
                self._last_answer = self._last_sound = time.monotonic()
                self._answered = request
                return answer

    def is_unchanged(self) -> bool:
        """Return whether all answers since the last call are from the first model.

        Returns false if a server is unreachable and can't confirm that; the caller must then send those requests again.
        Raises ModelChanged, and ServerError if servers have failed to confirm it too many times in a row.
        """
        unchecked = [server for server in self._servers if server.unchecked]
        for server in unchecked:
            server.unchecked = False  # before the check: answers during it belong to the next call
        away = [server for server in unchecked if not server.is_unchanged()]
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
        """Return whether `server` answers the last answered request again; false if there is none.

        Raises ServerError.
        """
        if self._answered is None:
            return False
        try:
            server.model.answer(self._answered)
        except RequestRefused as error:
            raise of_server(error) from error
        self._last_sound = time.monotonic()
        return True

    def _counts(self, error: ServerError) -> bool:
        """Return whether the request may be to blame for this failure. The server had just answered another request."""
        if isinstance(error, RequestTimeout):
            return self._persistence.row_timeout is not None
        return not isinstance(error, ServerBusy | ModelUnknown | RequestCancelled)

    def _request_fault(self, error: ServerError) -> str:
        """Return the text of the error row of a request that is to blame.

        It has no address, which differs between runs.
        """
        if isinstance(error, RequestTimeout):
            return f"It takes longer than {self._persistence.row_timeout:g} s."
        if isinstance(error, ServerUnreachable):
            return "The server ends at it every time."
        return f"The server fails at it: {error.message}"

    def _check(self, error: ServerError, began: float) -> None:
        """Raise the error that ends the retries, if they must end."""
        if isinstance(error, RequestRefused) and not isinstance(error, ModelUnknown):
            raise error if error.status in REFUSALS else of_server(error)
        if isinstance(error, ServerUnreachable) and not self._returns:
            raise error
        waited = time.monotonic() - max(began, self._last_answer)
        if waited > self._persistence.patience:
            raise gave_up(error, waited) from error

    def _acquire(self, request: Request, alone: bool) -> Server:
        """Wait for the least loaded server that may get `request`, and count the request as in flight."""
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
            pause(0.0)  # raises if the run has been cancelled

    def _free(self, request: Request, alone: bool, now: float) -> Server | None:
        if self._alone is not None and self._alone is not request:
            return None
        if alone and any(server.in_flight for server in self._servers):
            self._alone = request  # so that no other request begins
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
    """Return `error` as the error that ends a run after `waited` seconds."""
    fix = "Nothing is lost: when it serves again, `hfx batch resume` of the job's folder; --patience waits longer."
    return of_server(error.with_message(f"No server has answered for {waited:.0f} s. {error.message}"), fix)


def of_server(error: ServerError, fix: str = "") -> ServerError:
    """Return `error` as an error of the server: never RequestRefused, which would become an error row."""
    kind = ServerError if isinstance(error, RequestRefused) else type(error)
    return kind(error.message, fix or error.fix, status=error.status, model=error.model)


def persistent(models: Sequence[Model], persistence: Persistence, returns: bool = True) -> Model:
    """Combine the equal `models` into one Model that answers through `Servers`."""
    first = models[0]
    at_once = sum(model.at_once for model in models)
    servers = Servers(models, persistence, returns)
    return replace(first, answer=servers.answer, stream=None, at_once=at_once, is_unchanged=servers.is_unchanged)
