"""Users for locust: `locust -f perf/locustfile.py --host grpc://127.0.0.1:8001 --model sentiment`, web page included.

GrpcUser and RestUser send whole requests over gRPC and HTTP, StreamingUser reads generators' pieces as they come and
reports the time to the first one as a request of its own ("first token"). Name the classes that you want, or leave it
to the address and --stream. Texts come from --data F.csv --column C, or are synthetic.

`hfx perf run --tool locust` runs this very file with options of its own (--requests-file, --times, --records).
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TextIO

import grpc.experimental.gevent as grpc_gevent
from gevent.event import Event
from locust import User, constant, events, task
from locust.exception import StopUser

from hfx import names
from hfx.client import Client
from hfx.errors import HfxError, UsageError
from hfx.perf.load import Request, RequestSet, from_file, parse_columns, parse_lengths, synthetic, text_tensors

grpc_gevent.init_gevent()
logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells every request

SYNTHETIC = 256  # requests, sent in turn
EPOCH = time.time() - time.perf_counter()


def now() -> float:
    """Seconds since the epoch, by a clock that never jumps."""
    return EPOCH + time.perf_counter()


class Turns:
    """Which request is next, and when it is due; shared by all users."""

    def __init__(self, asks: RequestSet, times: tuple[float, ...], records: TextIO | None) -> None:
        self.asks = asks
        self.spawned = Event()
        self._numbers = itertools.count()
        self._times = times
        self._records = records
        self._start = 0.0

    def next(self) -> tuple[Request, float]:
        """The next request and when it is due. Raises StopUser after the last one."""
        number = next(self._numbers)
        if not self._times:
            return self.asks.at(number), now()
        self.spawned.wait()
        self._start = self._start or now() + 0.1
        if number >= len(self._times):
            raise StopUser
        return self.asks.at(number), self._start + self._times[number]

    def note(self, record: Mapping[str, Any]) -> None:
        """Write a request down where a file was asked for."""
        if self._records is not None:
            self._records.write(json.dumps(record) + "\n")


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def options(parser: Any) -> None:
    """Further options of locust, and fields of its web page."""
    parser.add_argument("--model", env_var="HFX_MODEL", default="", help="The model that is asked.")
    parser.add_argument("--data", env_var="HFX_DATA", default="", help="Requests: a CSV, JSON-lines or Parquet file.")
    parser.add_argument("--column", env_var="HFX_COLUMN", default="", help="Its column, or TENSOR=COLUMN,….")
    parser.add_argument("--lengths", env_var="HFX_LENGTHS", default="uniform:4-60", help="Words of synthetic texts.")
    parser.add_argument(
        "--max-tokens", env_var="HFX_MAX_TOKENS", type=int, default=0, help="Of generated texts; 0: all."
    )
    parser.add_argument("--stream", env_var="HFX_STREAM", action="store_true", help="Read the pieces as they come.")
    parser.add_argument("--request-timeout", env_var="HFX_TIMEOUT", type=float, default=60.0, help="Seconds a request.")
    for hidden in ("--requests-file", "--times", "--records"):
        parser.add_argument(hidden, default="", include_in_web_ui=False, help="Set by hfx perf run.")


@events.init.add_listener  # type: ignore[untyped-decorator]
def choose(environment: Any, **_: Any) -> None:
    """Without classes named on the command line: the one that the address and --stream mean."""
    chosen = environment.parsed_options
    if chosen is None or chosen.user_classes:
        return
    kind = StreamingUser if chosen.stream else RestUser if str(chosen.host or "").startswith("http") else GrpcUser
    environment.user_classes = [kind]


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Any, **_: Any) -> None:
    """Read what is to be asked; what is wrong with it ends the test."""
    try:
        environment.hfx_turns = turns = _turns(environment)
    except HfxError as error:
        logging.getLogger(__name__).error("%s %s", error.message, error.fix)
        environment.process_exit_code = error.exit_code
        environment.runner.quit()
        return
    environment.events.spawning_complete.add_listener(lambda **_: turns.spawned.set())


def _turns(environment: Any) -> Turns:
    chosen = environment.parsed_options
    kinds = environment.user_classes
    times = tuple(json.loads(Path(chosen.times).read_text())) if chosen.times else ()
    records = Path(chosen.records).open("a", buffering=1, encoding="utf-8") if chosen.records else None  # noqa: SIM115
    host = chosen.host or environment.host or kinds[0].host
    return Turns(read_asks(chosen, host), times, records)


def read_asks(chosen: Any, host: str) -> RequestSet:
    """The requests: as hfx perf run wrote them, of a data file, or synthetic."""
    if chosen.requests_file:
        lines = Path(chosen.requests_file).read_text(encoding="utf-8").splitlines()
        asks = (json.loads(line) for line in lines)
        return RequestSet(tuple(Request({name: tuple(values) for name, values in ask.items()}) for ask in asks), "")
    if not chosen.model:
        raise UsageError("No model is named.", "Give --model NAME, or set HFX_MODEL.")
    with Client(host, timeout=chosen.request_timeout, retries=0) as client:
        inputs = client.metadata(chosen.model).input_types
    settings = {names.MAX_TOKENS: chosen.max_tokens} if chosen.max_tokens else {}
    if chosen.data:
        columns = parse_columns([each for each in chosen.column.split(",") if each], inputs)
        return from_file(Path(chosen.data), columns, settings, inputs=inputs)
    lengths = parse_lengths(chosen.lengths)
    return synthetic(SYNTHETIC, lengths, settings=settings, tensors=text_tensors(inputs))


class AskingUser(User):
    """Sends one request after the other, or when it is due."""

    abstract = True
    wait_time = constant(0)
    protocol = "grpc"
    numbers: ClassVar[Iterator[int]] = itertools.count()

    def on_start(self) -> None:
        """A connection of its own, as of a caller."""
        chosen = self.environment.parsed_options
        seconds = chosen.request_timeout
        self.model = chosen.model
        self.number = next(AskingUser.numbers)
        self.asking = self.environment.hfx_turns
        self.client = Client(str(self.host), timeout=seconds, idle_timeout=seconds, retries=0)

    def on_stop(self) -> None:
        """Let go of it."""
        self.client.close()

    @task
    def ask(self) -> None:
        """One request."""
        ask, due = self.asking.next()
        while (pause := due - now()) > 0:
            time.sleep(pause)  # gevent's
        sent, times, pieces = now(), [], []
        error: HfxError | None = None
        try:
            for at, piece in self.answers(ask):
                times.append(at)
                pieces.append(piece)
        except HfxError as failure:
            error = failure
        end = times[-1] if times and error is None else now()
        self._fire(self.model, end - due, len(pieces), error)
        self.asking.note(
            {
                "due": due, "sent": sent, "end": end, "caller": self.number, "times": times, "pieces": pieces,
                "error": [type(error).__name__, error.message] if error else None,
            }
        )  # fmt: skip

    def answers(self, ask: Request) -> Iterator[tuple[float, tuple[int, int, int, str]]]:
        """When each part of the answer came, and its tokens read, written and left out, and why it ended."""
        outputs = self.client.infer(self.model, {name: list(values) for name, values in ask.inputs.items()})
        read, written, cut = (_number(outputs, name) for name in COUNTS)
        yield now(), (read, written, cut, _text(outputs, names.FINISH_REASON))

    def _fire(self, name: str, seconds: float, length: int, error: HfxError | None) -> None:
        self.environment.events.request.fire(
            request_type=self.protocol,
            name=name,
            response_time=seconds * 1e3,
            response_length=length,
            exception=error,
            context={},
        )


class GrpcUser(AskingUser):
    """Whole requests over gRPC."""

    host = "grpc://127.0.0.1:8001"


class RestUser(AskingUser):
    """Whole requests over HTTP."""

    host = "http://127.0.0.1:8000"
    protocol = "http"


class StreamingUser(AskingUser):
    """Generators' texts, read piece by piece, over either protocol."""

    host = "grpc://127.0.0.1:8001"
    protocol = "stream"

    def answers(self, ask: Request) -> Iterator[tuple[float, tuple[int, int, int, str]]]:
        """See AskingUser."""
        begin = now()
        text, settings = _as_keywords(ask)
        with self.client.stream(self.model, text, **settings) as pieces:
            for count, piece in enumerate(pieces):
                at = now()
                if count == 0:
                    self._fire("first token", at - begin, 1, None)
                yield at, (piece.input_tokens, piece.output_tokens, piece.truncated_tokens, piece.finish_reason)


COUNTS = (names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.TRUNCATED_TOKENS)


def _as_keywords(ask: Request) -> tuple[str, dict[str, Any]]:
    """The text, and the settings as `client.stream` takes them."""
    given = {name: values for name, values in ask.inputs.items() if name not in (names.TIMEOUT_MS, names.STREAM)}
    settings = {name: list(values) if name == names.STOP_WORDS else values[0] for name, values in given.items()}
    return str(settings.pop(names.TEXT_INPUT, "")), settings


def _number(outputs: Mapping[str, Any], name: str) -> int:
    return int(outputs[name].ravel()[0]) if name in outputs and outputs[name].size else 0


def _text(outputs: Mapping[str, Any], name: str) -> str:
    return outputs[name].ravel()[0].decode() if name in outputs and outputs[name].size else ""
