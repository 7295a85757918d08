"""`hfx perf run`: its options, invalid usage, exit codes, and its output during a run."""

from __future__ import annotations

import io
import json
import re
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main, perf
from hfx.cli.commands import load
from hfx.cli.output import Reporter
from hfx.cli.perf import loads
from hfx.cli.perf.loads import DataOptions, LimitOptions, LoadOptions, ServerOptions
from hfx.cli.perf.printing import Row, live
from hfx.metadata import ModelMetadata, TensorMetadata
from hfx.perf.load import Closed, LoadLimits, Open, Plan
from hfx.perf.loadgen.log import Progress
from hfx.perf.results import read_result
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.perf_fake_server import WRITER, FakeServer

PAGE = (Path(__file__).parents[3] / "docs" / "perf.md").read_text(encoding="utf-8")


def run(server: FakeServer, *words: str) -> int:
    return main(["perf", "run", WRITER, "--url", server.url, "--warmup", "0", *words])


@pytest.fixture
def orders(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a data file of texts."""

    def write(*texts: str) -> str:
        path = tmp_path / "orders.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return str(path)

    return write


# Options


@pytest.mark.parametrize(
    ("load", "limit", "plans", "limits"),
    [
        (LoadOptions(), LimitOptions(), [Closed(1)], LoadLimits(seconds=10.0, warmup_seconds=1.0, timeout=60.0)),
        (LoadOptions(concurrency="1:8:2x"), LimitOptions(stable="5%", warmup="20"),
         [Closed(1), Closed(2), Closed(4), Closed(8)], LoadLimits(stable=5.0, warmup_requests=20)),
        (LoadOptions(rate="5,10", arrivals="poisson"), LimitOptions(duration="2m", timeout="5s"),
         [Open(5.0, "poisson", seed=3), Open(10.0, "poisson", seed=3)],
         LoadLimits(seconds=120.0, warmup_seconds=1.0, timeout=5.0)),
        # Both end by themselves, and have no warm-up.
        (LoadOptions(arrivals="burst"), LimitOptions(requests=512), [Open(arrivals="burst", seed=3)],
         LoadLimits(requests=512)),
        (LoadOptions(trace=Path("times.txt")), LimitOptions(),
         [Open(arrivals="trace", trace=(0.0, 0.5, 2.0), seed=3)], LoadLimits()),
    ],
)  # fmt: skip
def test_options_are_plans_in_turn_with_their_limits(
    load: LoadOptions,
    limit: LimitOptions,
    plans: list[Plan],
    limits: LoadLimits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("times.txt").write_text("0\n0.5\n2\n")
    assert loads.plans(load, seed=3) == tuple(plans)
    assert [loads.limits(limit, plan) for plan in plans] == [limits] * len(plans)


def test_lengths_that_were_not_chosen_are_cut_to_what_a_generator_takes() -> None:
    inputs = tuple(TensorMetadata(name, "BYTES", (-1, 1)) for name in ("text_input", "long"))
    model = ModelMetadata("m", inputs, (), "text-generation")
    sent = [loads.requests(options, model).at(0).inputs for options in (
        DataOptions(), DataOptions(words="fixed:9"), DataOptions(set=["long=error"])
    )]  # fmt: skip
    assert [each.get("long") for each in sent] == [("truncate",), None, ("error",)]
    encoder = ModelMetadata("m", inputs[:1], (), "text-classification")
    assert set(loads.requests(DataOptions(), encoder).at(0).inputs) == {"text_input"}


def test_server_addresses_are_completed_with_scheme_and_path() -> None:
    target = loads.target(ServerOptions("h:1", http_url="h:2/", metrics_url="h:3"), "m")
    assert (target.grpc_url, target.http_url, target.metrics_url) == ("h:1", "http://h:2", "http://h:3/metrics")
    kept = loads.target(ServerOptions(metrics_url="https://h/metrics"), "m")
    assert (kept.http_url, kept.metrics_url) == ("", "https://h/metrics")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output /nowhere/r.json", "/nowhere/r.json can't be written: "),
        ("--url http://h:8000", "is an HTTP address"),
        ("--rate 5 --concurrency 2", "--concurrency is for callers that wait"),
        ("--arrivals poisson", "need a rate"),
        ("--concurrency many", "concurrency 'many' can't be read"),
        ("--rate 5 --arrivals sometimes", "no arrivals 'sometimes'"),
        ("--requests 5 --duration 2s", "--requests and --duration exclude each other"),
        ("--duration soon", "--duration is 'soon'"),
        ("--stable all", "--stable all is not a percentage"),
        ("--warmup some", "warm-up is 'some'"),
        ("--timeout 0", "--timeout is '0'"),
        ("--data F --words fixed:3", "--words and --data exclude"),
        ("--column text", "--column needs --data"),
        ("--data /nowhere.csv", "nowhere.csv"),
        ("--data {data} --column body", "has no column 'body'; its columns are text."),
        ("--set max_tokens", "--set max_tokens has no value"),
        ("--set max_tokens=1 --set max_tokens=2", "is given twice"),
        ("--set max_tokens=few", "max_tokens is 'few'"),
        ("--set heat=1", "The model 'writer' has no input 'heat': it takes text_input, max_tokens"),
        ("--slo speed>9", "speed>9"),
        ("--tool wrk", "'wrk' is not one of 'builtin', 'perf_analyzer', 'locust'."),
        ("-- --percentile 95", "The built-in load generator takes no flags: --percentile 95"),
        ("--max-error-rate 2", "--max-error-rate"),
    ],
)
def test_invalid_options_of_perf_run_are_one_line(
    words: str, message: str, server: FakeServer, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, *words.replace("{data}", orders("write 1")).split()) == 2
    printed = capsys.readouterr()
    assert message in next(line for line in printed.err.splitlines() if line.startswith("Error: "))
    assert printed.out == "" and server.texts == []


# Results


def test_a_run_prints_a_table_and_writes_a_result_file(
    server: FakeServer, orders: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    load = ("--concurrency", "1,2", "--requests", "8", "--data", orders("write 3"), "--slo", "ttft<9s")
    assert run(server, *load, "--set", "max_tokens=50", "--output", str(path), "--label", "mine") == 0
    printed = capsys.readouterr()
    result = read_result(path)
    assert [each.load.concurrency for each in result.runs] == [1, 2]
    assert (result.kind, result.runs[0].subject.label, result.runs[0].goodput) == ("run", "mine", 1.0)
    assert result.runs[0].load.data == "orders.jsonl, column text: 1 request of 2 words, max_tokens=50"
    assert {each["max_tokens"] for each in server.inputs} == {50}
    assert result.command.split()[0] == "hfx" and result.machine.cores > 0
    lines = printed.out.splitlines()
    assert any("1 caller" in line and "mine" in line for line in lines) and lines[-1].startswith(f"Written to {path}. ")
    assert "writer, 2 callers …" in printed.err
    assert any(line.startswith("mine holds ") and "within ttft<9s" in line for line in lines)


def test_json_is_the_result_and_errors_stand_at_the_top(
    server: FakeServer, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = orders("write 1", "write 1", "write 1", "fail INVALID_ARGUMENT it is no text")
    words = ("--requests", "8", "--data", data, "--no-stream")
    assert run(server, *words, "--json") == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    [found] = value["runs"]
    assert (value["format"], found["requests"]["sent"], found["requests"]["errors"]) == (2, 8, {"RequestRefused": 2})
    assert run(server, *words) == 0
    first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning: "))
    assert "2 of 8 requests failed" in first and "it is no text" in first


@pytest.mark.parametrize(("allowed", "code"), [("0.25", 0), ("0.2", 5)])
def test_more_errors_than_allowed_set_the_exit_code_and_leave_the_result(
    allowed: str, code: int, server: FakeServer, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = orders("write 1", "write 1", "write 1", "fail INTERNAL broken")
    assert run(server, "--requests", "8", "--data", data, "--no-stream", "--max-error-rate", allowed, "--json") == code
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["runs"]) == 1
    assert ("more than --max-error-rate" in printed.err) == (code == 5)


def test_a_run_without_any_answer_prints_only_the_reason(
    server: FakeServer, orders: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, "--requests", "3", "--data", orders("fail INTERNAL broken"), "--no-stream") == 5
    printed = capsys.readouterr()
    assert printed.out == "" and "Error: None of 3 requests to writer succeeded" in printed.err
    assert "broken" in printed.err


def test_a_server_that_dies_leaves_what_was_measured_until_then(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        wait_until(lambda: len(server.texts) >= 500)
        server.kill()

    path, killer = tmp_path / "result.json", threading.Thread(target=kill)
    killer.start()
    assert run(server, "--no-stream", "--concurrency", "1,2,3", "--requests", "400", "--output", str(path)) == 5
    killer.join()
    printed, result = capsys.readouterr(), read_result(path)
    whole, partial = result.runs
    assert whole.requests.succeeded == 400 and not whole.interrupted
    assert partial.requests.succeeded > 10 and "ServerUnreachable" in partial.requests.errors
    assert "requests failed" in printed.out and "The server was gone" in printed.out
    assert any("1 further load was not run: " in note for note in result.notes)
    said = printed.err[printed.err.index("Error: The server was gone") :]
    assert "Traceback" not in said  # before it, gRPC's server in this process may have its own


# The page


def page_commands() -> list[str]:
    """Return the commands of docs/perf.md."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
    lines = [line.split("  #")[0].strip() for line in blocks.splitlines()]
    return [line for line in lines if line.startswith("hfx perf ")]


@pytest.mark.parametrize("line", page_commands())
def test_the_page_s_commands_parse(line: str) -> None:
    _, _, name, *words = shlex.split(line)
    load(name, perf.COMMANDS).make_context(name, words, resilient_parsing=False)


def test_the_page_s_python_runs(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, measuring = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    result = tmp_path / "load.json"
    assert run(server, "--requests", "3", "--output", str(result)) == 0
    capsys.readouterr()
    exec(reading.replace("load.json", str(result)), {})
    assert "1 caller" in capsys.readouterr().out
    for words, replaced in (("127.0.0.1:8001", server.url), ("sentiment", WRITER), ("seconds=10", "seconds=1")):
        measuring = measuring.replace(words, replaced)
    exec(measuring, {})
    assert capsys.readouterr().out


# On the way


def progress(phase: Any, throughput: float) -> Progress:
    return Progress(phase, 2.0, 1234, 1230, 4, 8, throughput, 10.25, 99.5)


def test_a_row_shows_the_last_progress_and_the_throughput_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("sentiment, 8 callers")
    assert row.cells()[:2] == ["sentiment, 8 callers", "starting"]
    for moment, (phase, throughput) in enumerate([("warmup", 9.0), ("counted", 50.0), ("counted", 100.0)]):
        monkeypatch.setattr("time.monotonic", lambda moment=moment: 100.0 + moment)
        row.update(progress(phase, throughput))
    assert row.cells() == ["sentiment, 8 callers", "measuring", "2 s", "1,234", "4", "8", "100", "10.2", "99.5", "▅█"]
    row.done = True
    assert row.cells()[1] == "done"


def test_a_table_lives_on_a_terminal_and_elsewhere_each_load_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    with live(Reporter()) as show:
        show("sentiment, 8 callers")(progress("counted", 100.0))
    assert screen.getvalue() == "sentiment, 8 callers …\n"
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    with live(Reporter()) as show:
        show("stories, 4 callers")(progress("counted", 100.0))
    written = screen.getvalue()
    assert "stories, 4 callers" in written and "█" in written
    assert written.rstrip().endswith("\x1b[2K")  # the last thing that is done is to wipe it away
