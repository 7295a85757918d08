"""The command line as a process: speed, what it imports, exit codes, and how errors look to people and to programs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from hfx.cli import EXTRAS, commands, main
from hfx.cli.output import Reporter, visible
from hfx.errors import (
    CheckpointCorrupt,
    HfxError,
    LintFailed,
    RepositoryError,
    ServerBusy,
    SourceError,
    UsageError,
    VerificationFailed,
)

HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "optimum", "openvino", "tritonclient", "grpc", "numpy")
RUN = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]
NOBODY = ["infer", "name", "text", "--url", "127.0.0.1:1"]


def hfx(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *words], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([name, "--help"] for name in commands.COMMANDS)])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from hfx.cli import main\n"
        f"code = main({words!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[] 0"


@pytest.mark.parametrize("words", [["infre", "x"], ["infer"], ["infer", "--nope", "a"], ["serve", "--http-port", "x"]])
def test_what_can_not_be_parsed_is_a_usage_error_with_a_way_on(words: list[str]) -> None:
    done = hfx(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--json", *NOBODY], [*NOBODY, "--json"]])
def test_json_may_stand_before_and_after_the_command(words: list[str]) -> None:
    done = hfx(*words)
    error = json.loads(done.stdout)["error"]
    assert (error["type"], error["exit_code"], done.returncode) == ("ServerUnreachable", 5, 5)
    assert "127.0.0.1:1" in error["message"]
    assert "hfx serve" in error["fix"]
    assert done.stderr.startswith("Error: ")


def test_json_is_printed_for_a_usage_error_too() -> None:
    done = hfx("infer", "--json")
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == 2


@pytest.mark.parametrize("words", [["--debug", *NOBODY], [*NOBODY, "--debug"]])
def test_a_traceback_is_shown_only_on_demand(words: list[str]) -> None:
    assert "Traceback" in hfx(*words).stderr
    assert "Traceback" not in hfx(*NOBODY).stderr


def test_what_follows_two_dashes_is_no_option() -> None:
    assert Reporter.of(["infer", "name", "--", "--json"]) == Reporter()
    assert Reporter.of(["--json", "infer", "--debug"]) == Reporter(json=True, debug=True)


def test_a_damaged_argument_is_a_usage_error_and_valid_json() -> None:
    done = subprocess.run([*RUN, *NOBODY, b"\xff", "--json"], capture_output=True, check=False)
    assert json.loads(done.stdout)["error"]["exit_code"] == 5  # the server is asked for the task first
    done = subprocess.run([*RUN, "infer", b"\xff", "text", "--json"], capture_output=True, check=False)
    assert json.loads(done.stdout)["error"]["exit_code"] == 2


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command `list` raise ERROR."""

    def command() -> None:
        raise error

    module = type(sys)("failing")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing", module)
    monkeypatch.setitem(commands.COMMANDS, "list", "failing")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HfxError("x"), 1),
        (UsageError("x"), 2),
        (RepositoryError("x"), 2),
        (SourceError("x"), 3),
        (CheckpointCorrupt("x"), 3),
        (VerificationFailed("x"), 4),
        (ServerBusy("x"), 5),
        (LintFailed("x"), 7),
        (ValueError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error, monkeypatch)
    assert main(["list", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == code


def test_an_unexpected_error_is_one_line_and_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ValueError("first\nsecond"), monkeypatch)
    assert main(["list"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Error: Unexpected: ValueError: first"
    assert "--debug" in lines[1]
    assert len(lines) == 2


def test_without_what_exports_need_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ModuleNotFoundError("No module named 'torch'", name="torch.nn"), monkeypatch)
    assert main(["list"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "Error: This needs the package torch, which is not installed.",
        "pip install 'hfx[export]'",
    ]


# Modules whose package has another name, and a package that only adds to another one's module.
MODULES = {"hdrhistogram": "hdrh", "vl_convert_python": "vl_convert"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_that_are_said_to_be_missing_are_those_of_the_extra(extra: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [line for each in extras[extra] for line in (extras["graphs"] if each == "hfx[graphs]" else [each])]
    packages = [re.split(r"[>=<\[]", line)[0].replace("-", "_") for line in lines]
    assert {MODULES.get(name, name) for name in packages} <= set(EXTRAS["export"].split() + EXTRAS[extra].split())


def test_a_reader_that_has_enough_ends_the_command_quietly() -> None:
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" --help | true', "-", *RUN], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 141)  # 0: everything was written before the reader left
    assert done.stderr == ""


def test_a_closed_output_is_no_traceback() -> None:
    done = subprocess.run(["bash", "-c", '"$@" --help >&-', "-", *RUN], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_130() -> None:
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
