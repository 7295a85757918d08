"""`hfx perf run`: what its options come to, what wrong use says, how its end is judged, and how it looks on the way."""

from __future__ import annotations

import json
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main, perf
from hfx.cli.commands import load
from hfx.cli.output import Reporter
from hfx.cli.perf import loads
from hfx.cli.perf.live import Row, live
from hfx.cli.perf.loads import DataOptions, LimitOptions, LoadOptions, ServerOptions, SloOptions
from hfx.client import ModelMetadata, TensorMetadata
from hfx.errors import UsageError
from hfx.perf.load import Closed, Open
from hfx.perf.loadgen.log import Progress
from hfx.perf.results import read_result
from tests.unit.client_servers import Script, grpc_server

GENERATOR = ModelMetadata(
    "writer", tuple(TensorMetadata(name, "BYTES", (-1, 1)) for name in ("text_input", "max_tokens", "stop_words")), ()
)


# Options


def test_without_options_one_caller_asks_for_ten_seconds_after_a_warm_up() -> None:
    [plan] = loads.plans(LoadOptions())
    found = loads.limits(LimitOptions(), plan)
    assert plan == Closed(1)
    assert (found.seconds, found.requests, found.warmup_seconds, found.timeout) == (10.0, None, 1.0, 60.0)


def test_several_loads_are_measured_in_turn() -> None:
    assert loads.plans(LoadOptions(concurrency="1:8:2x")) == tuple(Closed(n) for n in (1, 2, 4, 8))
    assert loads.plans(LoadOptions(rate="5,10", arrivals="poisson"), seed=3) == (
        Open(5.0, "poisson", seed=3),
        Open(10.0, "poisson", seed=3),
    )


def test_a_trace_and_a_burst_end_by_themselves_and_warm_nothing_up(tmp_path: Path) -> None:
    trace = tmp_path / "times.txt"
    trace.write_text("0\n0.5\n2\n")
    [plan] = loads.plans(LoadOptions(trace=trace))
    assert isinstance(plan, Open) and plan.trace == (0.0, 0.5, 2.0)
    found = loads.limits(LimitOptions(), plan)
    assert (found.seconds, found.warmup_seconds) == (None, 0.0)
    [burst] = loads.plans(LoadOptions(arrivals="burst"))
    found = loads.limits(LimitOptions(requests=512), burst)
    assert (found.requests, found.seconds, found.warmup_seconds) == (512, None, 0.0)


def test_until_it_is_stable_there_is_no_other_limit() -> None:
    found = loads.limits(LimitOptions(stable="5%", warmup="20"), Closed(1))
    assert (found.stable, found.seconds, found.warmup_requests, found.warmup_seconds) == (5.0, None, 20, 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LoadOptions(concurrency="2", rate="5"), "--concurrency is for callers that wait"),
        (LoadOptions(concurrency="2", trace=Path("F")), "--concurrency is for callers that wait"),
        (LoadOptions(arrivals="poisson"), "need a rate"),
        (LoadOptions(concurrency="many"), "concurrency 'many' can't be read"),
        (LoadOptions(rate="5", arrivals="sometimes"), "no arrivals 'sometimes'"),
    ],
)
def test_loads_that_can_t_be_are_refused(options: LoadOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loads.plans(options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LimitOptions(requests=5, duration="2s"), "--requests and --duration exclude each other"),
        (LimitOptions(duration="soon"), "--duration is 'soon'"),
        (LimitOptions(stable="all"), "--stable all is no percentage"),
        (LimitOptions(warmup="some"), "warm-up is 'some'"),
        (LimitOptions(timeout="0"), "--timeout is '0'"),
    ],
)
def test_limits_that_can_t_be_are_refused(options: LimitOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loads.limits(options, Closed(1))


def test_settings_are_of_every_request() -> None:
    found = loads.requests(DataOptions(set=["max_tokens=50", "stop_words=end,stop"], words="fixed:3"), GENERATOR)
    inputs = found.at(7).inputs
    assert (inputs["max_tokens"], inputs["stop_words"]) == ((50,), ("end", "stop"))
    assert len(str(inputs["text_input"][0]).split()) == 3
    assert found.words == "synthetic texts of 3 words, max_tokens=50, stop_words=end,stop"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DataOptions(data=Path("F"), words="fixed:3"), "--words are made up"),
        (DataOptions(column=["text"]), "--column is about --data"),
        (DataOptions(set=["max_tokens"]), "--set max_tokens has no value"),
        (DataOptions(set=["max_tokens=1", "max_tokens=2"]), "is given twice"),
        (DataOptions(set=["heat=1"]), "has no input 'heat': it takes text_input, max_tokens"),
        (DataOptions(set=["max_tokens=few"]), "max_tokens is 'few'"),
        (DataOptions(data=Path("/nowhere.csv")), "nowhere.csv"),
    ],
)
def test_requests_that_can_t_be_are_refused(options: DataOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loads.requests(options, GENERATOR)


def test_addresses_are_completed() -> None:
    found = loads.target(ServerOptions("h:1", http_url="h:2/", metrics_url="h:3"), "m")
    assert (found.grpc_url, found.http_url, found.metrics_url) == ("h:1", "http://h:2", "http://h:3/metrics")
    kept = loads.target(ServerOptions(metrics_url="https://h/metrics"), "m")
    assert (kept.http_url, kept.metrics_url) == ("", "https://h/metrics")
    with pytest.raises(UsageError, match="is an HTTP address"):
        loads.target(ServerOptions("http://h:8000"), "m")
    assert loads.slo(SloOptions()) is None


# The command


@pytest.fixture
def url() -> Iterator[str]:
    """A server that does what the texts of requests say."""
    with grpc_server(Script()) as address:
        yield address


@pytest.fixture
def orders(tmp_path: Path) -> Callable[..., str]:
    """A data file of texts."""

    def write(*texts: str) -> str:
        path = tmp_path / "orders.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return str(path)

    return write


def run(url: str, *words: str, name: str = "writer") -> int:
    return main(["perf", "run", name, "--url", url, "--warmup", "0", *words])


def test_a_table_for_people_and_a_file(
    url: str, orders: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    load = ("--concurrency", "1,2", "--requests", "8", "--data", orders("write 3"), "--slo", "ttft<9s")
    assert run(url, *load, "--output", str(path), "--label", "mine") == 0
    printed = capsys.readouterr()
    result = read_result(path)
    assert [each.load.concurrency for each in result.runs] == [1, 2]
    assert (result.kind, result.runs[0].subject.label, result.runs[0].goodput) == ("run", "mine", 1.0)
    assert result.command.split()[0] == "hfx" and result.machine.cores > 0
    lines = printed.out.splitlines()
    assert any("1 caller" in line and "mine" in line for line in lines) and lines[-1] == f"Written to {path}."
    assert "writer, 2 callers …" in printed.err


def test_json_is_the_result_and_errors_stand_at_the_top(
    url: str, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = orders("write 1", "write 1", "write 1", "fail INVALID_ARGUMENT it is no text")
    words = ("--requests", "8", "--data", data, "--no-stream")
    assert run(url, *words, "--json") == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    [found] = value["runs"]
    assert (value["format"], found["requests"]["sent"], found["requests"]["errors"]) == (2, 8, {"RequestRefused": 2})
    assert run(url, *words) == 0
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning: "))
    assert "2 of 8 requests failed" in first and "it is no text" in first


@pytest.mark.parametrize(("allowed", "code"), [("0.3", 0), ("0.25", 0), ("0.2", 5), ("0", 5)])
def test_more_errors_than_allowed_set_the_exit_code(
    allowed: str, code: int, url: str, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = orders("write 1", "write 1", "write 1", "fail INTERNAL broken")
    assert run(url, "--requests", "8", "--data", data, "--no-stream", "--max-error-rate", allowed) == code
    printed = capsys.readouterr()
    assert "Load" in printed.out  # the table is there all the same
    assert ("more than --max-error-rate" in printed.err) == (code == 5)


def test_with_json_a_result_that_fails_is_still_one_object(
    url: str, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = orders("write 1", "fail INTERNAL broken")
    assert run(url, "--requests", "4", "--data", data, "--no-stream", "--max-error-rate", "0", "--json") == 5
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1


def test_without_an_answer_the_reason_is_all_there_is(
    url: str, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(url, "--requests", "3", "--data", orders("fail INTERNAL broken"), "--no-stream") == 5
    printed = capsys.readouterr()
    assert printed.out == "" and "Error: None of 3 requests to writer succeeded" in printed.err
    assert "broken" in printed.err


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--output", "/nowhere/r.json"], 2, "Error: /nowhere/r.json can't be written: "),
        (["--rate", "5", "--concurrency", "2"], 2, "Error: --concurrency is for callers that wait"),
        (["--data", "{data}", "--column", "body"], 2, "has no column 'body'; its columns are text."),
        (["--set", "heat=1"], 2, "Error: The model 'writer' has no input 'heat'"),
        (["--slo", "speed>9"], 2, "Error: "),
        (["--tool", "wrk"], 2, "Error: Invalid value for '--tool'"),
        (["--", "--percentile", "95"], 2, "Error: The built-in generator has no flags of its own: --percentile 95"),
        (["--max-error-rate", "2"], 2, "Error: Invalid value for '--max-error-rate'"),
    ],
)
def test_wrong_use_is_one_line(
    words: list[str], code: int, line: str, url: str, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = orders("write 1")
    assert run(url, *(word.replace("{data}", data) for word in words)) == code
    printed = capsys.readouterr()
    assert line in next(each for each in printed.err.splitlines() if each.startswith("Error: "))
    assert printed.out == ""


def test_an_unknown_model_and_a_server_that_is_down(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(url, name="reader") == 5
    assert "has no model 'reader'.\nIt serves: writer" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    assert run(nobody) == 5
    assert f"Error: The server at {nobody} can't be reached" in capsys.readouterr().err


# The page


def page_lines() -> list[str]:
    """The commands of docs/perf.md."""
    page = (Path(__file__).parents[2] / "docs" / "perf.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))
    lines = [line.split("  #")[0].strip() for line in blocks.splitlines()]
    return [line for line in lines if line.startswith("hfx perf ")]


@pytest.mark.parametrize("line", page_lines())
def test_the_page_s_commands_parse(line: str) -> None:
    _, _, name, *words = shlex.split(line)
    load(name, perf.COMMANDS).make_context(name, words, resilient_parsing=False)


def test_the_page_s_python_runs(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "perf.md").read_text(encoding="utf-8")
    reading, measuring = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    result = tmp_path / "load.json"
    assert run(url, "--requests", "3", "--output", str(result)) == 0
    capsys.readouterr()
    exec(reading.replace("load.json", str(result)), {})
    assert "1 caller" in capsys.readouterr().out
    exec(
        measuring.replace("127.0.0.1:8001", url).replace('"sentiment"', '"writer"').replace("seconds=10", "seconds=1"),
        {},
    )
    assert capsys.readouterr().out


# On the way


def progress(phase: Any, throughput: float) -> Progress:
    return Progress(phase, 2.0, 1234, 1230, 4, 8, throughput, 10.25, 99.5)


def test_a_row_shows_the_last_news_and_the_throughput_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("sentiment, 8 callers")
    assert row.cells()[:2] == ["sentiment, 8 callers", "starting"]
    for moment, (phase, throughput) in enumerate([("warmup", 9.0), ("counted", 50.0), ("counted", 100.0)]):
        monkeypatch.setattr("time.monotonic", lambda moment=moment: 100.0 + moment)
        row.update(progress(phase, throughput))
    assert row.cells() == ["sentiment, 8 callers", "measuring", "2 s", "1,234", "4", "8", "100", "10.2", "99.5", "▅█"]

    row.done = True
    assert row.cells()[1] == "done"


def test_on_a_terminal_the_table_lives_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    with live(Reporter()) as show:
        hear = show("sentiment, 8 callers")
        hear(progress("counted", 100.0))
    written = screen.getvalue()
    assert "sentiment, 8 callers" in written and "█" in written
    assert written.rstrip().endswith("\x1b[2K")  # the last thing that is done is to wipe it away


def test_elsewhere_each_load_is_one_note(capsys: pytest.CaptureFixture[str]) -> None:
    with live(Reporter()) as show:
        show("sentiment, 8 callers")(progress("counted", 100.0))
    assert capsys.readouterr().err == "sentiment, 8 callers …\n"
