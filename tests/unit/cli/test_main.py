"""The command line as a process: speed, imports, exit codes, and errors for people and for programs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hfx import errors
from hfx.cli import commands, main
from hfx.cli.output import Reporter, visible
from hfx.extras import EXTRAS
from tests.rigs.files.repositories import build

HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "optimum", "tritonclient", "grpc", "numpy")
RUN = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]
Fail = Callable[[BaseException], None]
Run = Callable[..., subprocess.CompletedProcess[str]]
LONG = "a" * 5000
CALL = ["infer", "name", "text", "--url", "127.0.0.1:1"]


@pytest.fixture
def hfx(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `hfx WORDS` in this process."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, main(words), *capsys.readouterr())

    return run


@pytest.mark.parametrize("words", [["list", LONG], ["verify", LONG], ["lint", LONG], ["infer", LONG, "x", "--local"]])
def test_a_name_that_no_file_can_have_is_a_usage_error(words: list[str], hfx: Run) -> None:
    done = hfx(*words)
    assert done.returncode == 2
    assert "longer than" in done.stderr and "Unexpected" not in done.stderr


@pytest.mark.parametrize("command", ["list", "lint", "serve"])
def test_a_repository_is_given_by_its_place_or_by_its_option(command: str, hfx: Run, tmp_path: Path) -> None:
    missing = str(tmp_path / "models")
    for words in ([missing], ["--repository", missing]):
        done = hfx(command, *words)
        assert done.returncode == 2 and f"There is no folder {missing}." in done.stderr
    done = hfx(command, missing, "--repository", "other")
    assert done.returncode == 2 and "The repository is given twice" in done.stderr


def test_help_imports_nothing_heavy() -> None:
    calls = [["--help"], ["--version"], *([name, "--help"] for name in commands.COMMANDS)]
    code = (
        "import sys; from hfx.cli import main\n"
        f"for words in {calls!r}:\n"
        "    code = main(words)\n"
        f"    print(words, [name for name in {HEAVY!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"{words} [] 0" for words in calls]


def test_a_serving_process_imports_neither_numpy_nor_grpc() -> None:
    modules = "hfx.cli.serve, hfx.repository, hfx.triton.commands, hfx.triton.supervisor"
    code = f"import sys, {modules}; print([name for name in ('numpy', 'grpc', 'asyncio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["infre", "x"], ["infer"], ["infer", "--nope", "a"], ["serve", "--http-port", "x"]])
def test_an_unparsable_command_line_is_a_usage_error_that_points_to_help(words: list[str], hfx: Run) -> None:
    done = hfx(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--temperature hot", "'hot' is not a "),
        ("--top-k 1.5", "'1.5' is not a "),
        ("--retries -1", "-1 is "),
        ("--early-stopping x", "'x' is not one of 'true', 'false', 'never'."),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(words: str, message: str, hfx: Run) -> None:
    """The sentence is hfx's with typer 0.29 or later, which converts values with pydantic; else it is click's."""
    option, _ = words.split()
    error = hfx("infer", "name", "text", *words.split()).stderr.splitlines()[0]
    assert error.startswith("Error: ") and option in error and message in error


@pytest.mark.parametrize("words", [["--json", *CALL], [*CALL, "--json"]])
def test_json_may_stand_before_and_after_the_command(words: list[str], hfx: Run) -> None:
    done = hfx(*words)
    error = json.loads(done.stdout)["error"]
    assert (error["type"], error["exit_code"], done.returncode) == ("ServerUnreachable", 5, 5)
    assert "127.0.0.1:1" in error["message"]
    assert "hfx serve" in error["fix"]
    assert done.stderr.startswith("Error: ")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["infer"], 2),
        (["infer", b"\xff", "text"], 2),
        ([*CALL, b"\xff"], 5),  # the task is requested from the server first
    ],
)
def test_json_is_printed_for_usage_errors_and_damaged_arguments_too(words: list[str | bytes], code: int) -> None:
    done = subprocess.run([*RUN, *words, "--json"], capture_output=True, check=False)
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == code


@pytest.mark.parametrize(("given", "code"), [("", 2), ("A fine film.", 5)])
def test_a_pipe_is_read_without_a_dash(given: str, code: int) -> None:
    done = subprocess.run([*RUN, *CALL[:2], *CALL[3:]], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == code  # 5: there is a text, and no server
    assert ("There is no text." in done.stderr) == (not given)


def test_a_traceback_is_shown_only_on_demand(hfx: Run) -> None:
    shown = ["Traceback" in hfx(*words).stderr for words in (CALL, ["--debug", *CALL], [*CALL, "--debug"])]
    assert shown == [False, True, True]


def test_arguments_after_two_dashes_are_not_options() -> None:
    assert Reporter.of(["infer", "name", "--", "--json"]) == Reporter()
    assert Reporter.of(["--json", "infer", "--debug"]) == Reporter(json=True, debug=True)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Make the command `list` raise an error."""

    def fail(error: BaseException) -> None:
        def command() -> None:
            raise error

        monkeypatch.setitem(sys.modules, "failing", SimpleNamespace(command=command))
        monkeypatch.setitem(commands.COMMANDS, "list", "failing")

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.HfxError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.RepositoryError("x"), 2),
        (errors.SourceError("x"), 3),
        (errors.CheckpointCorrupt("x"), 3),
        (errors.VerificationFailed("x"), 4),
        (errors.ServerBusy("x"), 5),
        (errors.LintFailed("x"), 7),
        (ValueError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int, failing: Fail, hfx: Run) -> None:
    failing(error)
    done = hfx("list", "--json")
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == code


def test_a_misspelled_option_gets_the_nearest_one(hfx: Run) -> None:
    done = hfx("infer", "stories", "text", "--tempreature", "3")
    assert done.returncode == 2 and "Did you mean --temperature?" in done.stderr


MISSING = ModuleNotFoundError("No module named 'torch'", name="torch.nn")


@pytest.mark.parametrize(
    ("error", "code", "message", "fix"),
    [
        (ValueError("first\nsecond"), 1, "Unexpected: ValueError: first", "--debug shows more"),
        (MISSING, 2, "This needs the package torch, which is not installed.", "Run: pip install "),
    ],
)
def test_an_unexpected_error_is_one_line_and_a_fix(
    error: Exception, code: int, message: str, fix: str, failing: Fail, hfx: Run
) -> None:
    failing(error)
    done = hfx("list")
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (code, f"Error: {message}")
    assert second.startswith(fix)


WITHOUT = """
import sys
sys.modules |= dict.fromkeys({modules!r})  # as if they were not installed
from hfx.cli import main
sys.exit(main({words!r}))
"""


def test_serving_with_only_the_client_installed_says_what_to_install(tmp_path: Path) -> None:
    modules = ["uvicorn", "httptools", "uvloop", "tokenizers", "onnxruntime", "torch"]
    code = WITHOUT.format(modules=modules, words=["serve", str(tmp_path)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "not installed: uvicorn, httptools, uvloop" in done.stderr
    assert "Run: pip install" in done.stderr and "[embedded]" in done.stderr


PERF = """
import sys
sys.modules |= dict.fromkeys(["hdrh", "psutil", "altair", "pyarrow"])  # as if they were not installed
from hfx.cli import main
print([main(words.split()) for words in sys.argv[1:]])
"""


def test_arguments_of_measurements_are_checked_before_packages_are_needed(tmp_path: Path) -> None:
    wrong = ("--concurrency 0", "--rate z", "--slo zz", f"--output {tmp_path}")
    commands = [f"{command} {words}" for command in ("perf run x", "tune x", "perf compare x") for words in wrong]
    commands += ["perf run x --requests 1 --duration 1s", "tune x --budget zz", f"perf report x --output {tmp_path}"]
    done = subprocess.run([sys.executable, "-c", PERF, *commands], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[2] * len(commands)}\n" and "package" not in done.stderr
    right = subprocess.run([sys.executable, "-c", PERF, "perf run x"], capture_output=True, text=True, check=True)
    assert "package" in right.stderr


@pytest.mark.parametrize("name", ["file", "file/beneath"])
@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("demo", "--keep"),
        ("perf report none --output {folder}/page.html", "--svg"),
        ("batch run m {folder}/rows.csv --repository {folder}/models", "--output"),
        ("deploy docker m --repository {folder}/models", "--output"),
        ("serve {folder}/models", "--batch-dir"),
    ],
)
def test_a_file_in_the_place_of_an_outputs_folder_is_named(
    words: str, option: str, name: str, tmp_path: Path, hfx: Run
) -> None:
    build(tmp_path / "models")
    (tmp_path / "file").write_text("")
    (tmp_path / "rows.csv").write_text("text\nhello\n")
    done = hfx(*words.format(folder=tmp_path).split(), option, str(tmp_path / name))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Error: {option} " in done.stderr and f"{tmp_path / 'file'} " in done.stderr


# Modules whose package has another name, and a package that only adds to another one's module.
MODULES = {"hdrhistogram": "hdrh", "vl_convert_python": "vl_convert", "pyyaml": "yaml"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_that_are_said_to_be_missing_are_those_of_the_extra(extra: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    nested, lines = {f"hfx[{name}]": lines for name, lines in extras.items()}, extras[extra]
    while any(line in nested for line in lines):
        lines = [line for entry in lines for line in nested.get(entry, [entry])]
    packages = [re.split(r"[>=<\[]", line)[0].replace("-", "_") for line in lines]
    assert {MODULES.get(name, name) for name in packages} <= set(" ".join(EXTRAS.values()).split())


@pytest.mark.parametrize("line", ['set -o pipefail; "$@" --help | true', '"$@" --help >&-'])
def test_an_output_that_is_closed_ends_the_command_quietly(line: str) -> None:
    done = subprocess.run(["bash", "-c", line, "-", *RUN], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 141)  # 0: everything was written before the reader left
    assert done.stderr == ""


def test_verbose_versions_are_what_a_bug_report_needs(hfx: Run) -> None:
    value = json.loads(hfx("--version", "--verbose", "--json").stdout)
    assert {"hfx", "python", "system", "processor", "native kernels", "torch", "onnxruntime"} <= value.keys()
    assert value["numpy"] == importlib.metadata.version("numpy") and value["onnxruntime-gpu"] == "not installed"
    lines = hfx("--version", "--verbose").stdout.splitlines()
    assert len(lines) == len(value) and lines[0].startswith("hfx ")
    assert len(hfx("--version").stdout.splitlines()) == 1


def test_ctrl_c_exits_with_130_and_no_traceback() -> None:
    with socket.socket() as listener:  # a server that accepts and never answers
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen([*RUN, "infer", "name", "text", "--url", address], stderr=subprocess.PIPE, text=True)
        silent, _ = listener.accept()
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, words = process.communicate(timeout=20)
        silent.close()
    assert process.returncode == 130
    assert "Traceback" not in words


def test_shell_completion_offers_commands() -> None:
    environment = {**os.environ, "_HFX_COMPLETE": "complete_bash", "COMP_WORDS": "hfx inf", "COMP_CWORD": "1"}
    done = subprocess.run(RUN, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["infer"]


def test_a_model_s_output_can_not_steer_the_terminal() -> None:
    assert visible("\x1b[31mred\x07\r\n\tok") == "\ufffd[31mred\ufffd\ufffd\n\tok"


# In a process of its own: in this one, a signal may be delivered to a thread that other tests have left.
DEFERRED = """
import os, signal
from hfx.cli.interrupts import deferred

before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
try:
    with deferred():
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
        print("still here")
    print("not interrupted")
except KeyboardInterrupt:
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == before)
"""


def test_ctrl_c_waits_for_the_end_of_the_outermost_block() -> None:
    done = subprocess.run([sys.executable, "-c", DEFERRED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["still here", "True"]
