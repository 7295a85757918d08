"""Users for locust: `locust -f hfx/perf/locustfile.py --host grpc://127.0.0.1:8001 --model NAME`.

GrpcUser and RestUser send unary requests over gRPC and HTTP. StreamingUser streams generated texts, and also reports
the time to the first token, as a request named "first token". By default, the class is chosen by --host and --stream.
Texts come from --data F.csv --column C, or are synthetic.

`hfx perf run --tool locust` runs this file with the option --hfx-folder.
"""

from __future__ import annotations

import itertools
import json
import logging
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, ClassVar, TextIO

import gevent
import grpc.experimental.gevent as grpc_gevent
from gevent.event import Event
from locust import User, constant, events, task
from locust.exception import StopUser
from locust.stats import CSV_STATS_INTERVAL_SEC

from hfx import names
from hfx.client import Client
from hfx.errors import HfxError, UsageError
from hfx.perf.load import Request, RequestSet, from_file, parse_columns, parse_lengths, synthetic, text_tensors
from hfx.perf.loadgen.log import COUNTS, AnswerPart
from hfx.python_backends.engine.generation_settings import LISTS

grpc_gevent.init_gevent()
logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request

SYNTHETIC = 256  # number of synthetic requests, which are sent in turn
EPOCH = time.time() - time.perf_counter()


def now() -> float:
    """Return the seconds since the epoch, measured by a monotonic clock."""
    return EPOCH + time.perf_counter()


class Schedule:
    """The schedule of requests for all users.

    `records` is the file to which users write their records for hfx perf run.
    """

    def __init__(self, requests: RequestSet, times: Sequence[float] = (), records: TextIO | None = None) -> None:
        self.requests, self.records = requests, records
        self.spawned = Event()
        self._numbers = itertools.count()
        self._times, self._start = times, 0.0

    def next(self) -> tuple[Request, float]:
        """Return the next request and its due time. Raises StopUser after the last request."""
        number = next(self._numbers)
        if not self._times:
            return self.requests.at(number), now()
        self.spawned.wait()
        self._start = self._start or now() + 0.1
        if number >= len(self._times):
            raise StopUser
        return self.requests.at(number), self._start + self._times[number]


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def options(parser: Any) -> None:
    """Add options to locust's command line and web page."""
    parser.add_argument("--model", env_var="HFX_MODEL", default="", help="The served model.")
    parser.add_argument("--data", env_var="HFX_DATA", default="", help="Requests: a CSV, JSON-lines or Parquet file.")
    parser.add_argument("--column", env_var="HFX_COLUMN", default="", help="Its column, or TENSOR=COLUMN,….")
    parser.add_argument("--lengths", env_var="HFX_LENGTHS", default="uniform:4-60", help="Words of synthetic texts.")
    parser.add_argument(
        "--max-tokens", env_var="HFX_MAX_TOKENS", type=int, default=0, help="Of generated texts; 0: all."
    )
    parser.add_argument("--stream", env_var="HFX_STREAM", action="store_true", help="Read the pieces as they come.")
    parser.add_argument("--request-timeout", env_var="HFX_TIMEOUT", type=float, default=60.0, help="Seconds a request.")
    parser.add_argument("--hfx-folder", default="", include_in_web_ui=False, help="Set by hfx perf run.")


@events.init.add_listener  # type: ignore[untyped-decorator]
def choose(environment: Any, **_: Any) -> None:
    """Choose a user class by --host and --stream, unless classes are named on the command line."""
    gevent.get_hub().loop.update_now()  # else locust's timer of --run-time counts from before the imports
    chosen = environment.parsed_options
    if chosen is None or chosen.user_classes:
        return
    kind = StreamingUser if chosen.stream else RestUser if str(chosen.host or "").startswith("http") else GrpcUser
    environment.user_classes = [kind]


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Any, **_: Any) -> None:
    """Prepare the requests. An invalid request ends the test."""
    chosen = environment.parsed_options
    host = chosen.host or environment.host or environment.user_classes[0].host
    try:
        environment.hfx = schedule = _ordered(Path(chosen.hfx_folder)) if chosen.hfx_folder else _own(chosen, host)
    except HfxError as error:
        logging.getLogger(__name__).error("%s %s", error.message, error.fix)
        environment.process_exit_code = error.exit_code
        environment.runner.quit()
        return
    environment.events.spawning_complete.add_listener(lambda **_: schedule.spawned.set())
    if chosen.hfx_folder:
        gevent.signal_handler(signal.SIGINT, _end, environment.runner)


def _end(runner: Any) -> None:
    """End the test on SIGINT. A KeyboardInterrupt could end one user instead of the test."""
    runner.stop()
    gevent.sleep(CSV_STATS_INTERVAL_SEC + 0.1)  # locust writes its tables in this interval, but not at the end
    runner.quit()


def _ordered(folder: Path) -> Schedule:
    """Read the schedule that hfx perf run wrote into `folder`."""
    load = json.loads((folder / "load.json").read_text(encoding="utf-8"))
    requests = tuple(Request({name: tuple(values) for name, values in each.items()}) for each in load["requests"])
    records = (folder / "records.jsonl").open("a", buffering=1, encoding="utf-8")
    return Schedule(RequestSet(requests, ""), load["times"], records)


def _own(chosen: Any, host: str) -> Schedule:
    """Make the schedule for requests from a data file, or for synthetic requests."""
    if not chosen.model:
        raise UsageError("No model is named.", "Give --model NAME, or set HFX_MODEL.")
    with Client(host, timeout=chosen.request_timeout, retries=0) as client:
        inputs = client.metadata(chosen.model).input_types
    settings = {names.MAX_TOKENS: chosen.max_tokens} if chosen.max_tokens else {}
    if chosen.data:
        columns = parse_columns([each for each in chosen.column.split(",") if each], inputs)
        return Schedule(from_file(Path(chosen.data), columns, settings, inputs=inputs))
    lengths = parse_lengths(chosen.lengths)
    return Schedule(synthetic(SYNTHETIC, lengths, settings=settings, tensors=text_tensors(inputs)))


class ModelUser(User):
    """Sends requests one after the other, or at their due times."""

    abstract = True
    wait_time = constant(0)
    protocol = "grpc"
    numbers: ClassVar[Iterator[int]] = itertools.count()

    def on_start(self) -> None:
        """Open a connection."""
        chosen = self.environment.parsed_options
        seconds = chosen.request_timeout
        self.model = chosen.model
        self.number = next(ModelUser.numbers)
        self.client = Client(str(self.host), timeout=seconds, idle_timeout=seconds, retries=0)

    def on_stop(self) -> None:
        """Close the connection."""
        self.client.close()

    @task
    def send(self) -> None:
        """Send the next request when it is due, and record its times."""
        request, due = self.environment.hfx.next()
        while (pause := due - now()) > 0:
            time.sleep(pause)  # patched by gevent
        sent, times, pieces = now(), [], []
        error: HfxError | None = None
        try:
            for at, piece in self.answers(request):
                times.append(at)
                pieces.append(astuple(piece))
        except HfxError as failure:
            error = failure
        end = times[-1] if times and error is None else now()
        self._fire(self.model, end - due, len(pieces), error)
        record = {
            "due": due, "sent": sent, "end": end, "caller": self.number, "times": times, "pieces": pieces,
            "error": [type(error).__name__, error.message] if error else None,
        }  # fmt: skip
        if self.environment.hfx.records:
            self.environment.hfx.records.write(json.dumps(record) + "\n")

    def answers(self, request: Request) -> Iterator[tuple[float, AnswerPart]]:
        """Yield (arrival time, token counts) for each message of the answer."""
        outputs = self.client.infer(self.model, {name: list(values) for name, values in request.inputs.items()})
        named = [name for name in (*COUNTS, names.FINISH_REASON) if name in outputs]
        yield now(), AnswerPart.of({name: outputs[name].ravel()[0] for name in named})

    def _fire(self, name: str, seconds: float, length: int, error: HfxError | None) -> None:
        self.environment.events.request.fire(
            request_type=self.protocol,
            name=name,
            response_time=seconds * 1e3,
            response_length=length,
            exception=error,
            context={},
        )


class GrpcUser(ModelUser):
    """Sends requests over gRPC, and takes whole answers."""

    host = "grpc://127.0.0.1:8001"


class RestUser(ModelUser):
    """Sends requests over HTTP, and takes whole answers."""

    host = "http://127.0.0.1:8000"
    protocol = "http"


class StreamingUser(ModelUser):
    """Streamed texts of generators, over gRPC or HTTP."""

    host = "grpc://127.0.0.1:8001"
    protocol = "stream"

    def answers(self, request: Request) -> Iterator[tuple[float, AnswerPart]]:
        """Yield (arrival time, token counts) for each piece of the text."""
        begin = now()
        settings: dict[str, Any] = {
            name: list(values) if name in LISTS else values[0] for name, values in request.inputs.items()
        }
        with self.client.stream(self.model, settings.pop(names.TEXT_INPUT, ""), **settings) as pieces:
            for count, piece in enumerate(pieces):
                at = now()
                if count == 0:
                    self._fire("first token", at - begin, 1, None)
                yield (
                    at,
                    AnswerPart(piece.input_tokens, piece.output_tokens, piece.truncated_tokens, piece.finish_reason),
                )
