"""The output of `--help`: every command has examples that parse, and nothing is cut or in Python's terms."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import connection, main
from hfx.cli.commands import COMMANDS, load
from hfx.cli.help import EXAMPLES

RUN = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]


def commands(prefix: str = "", table: Mapping[str, str] = COMMANDS) -> Iterator[tuple[str, Any]]:
    """Yield every command that is not a group, by its full name."""
    for name in table:
        command = load(name, table)
        if hasattr(command, "table"):
            yield from commands(f"{prefix}{name} ", command.table)
        else:
            yield prefix + name, command


ALL = dict(commands())


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*name.split(), "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_two_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = help_of(name, capsys).partition(EXAMPLES)[2].splitlines()
    lines = [line.rpartition("| ")[2].strip() for line in examples]
    assert len(lines) >= 2
    for line in lines:
        program, *words = shlex.split(line)
        assert [program, *words[: len(name.split())]] == ["hfx", *name.split()]
        ALL[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("name", ALL)
def test_options_show_what_they_take_and_no_python(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(name, capsys)
    assert not re.search(r"<(str|int|float|path|list)|list\[|None|int range", text)
    assert "{" not in text.splitlines()[0]


@pytest.mark.parametrize("name", ALL)
def test_no_line_ends_within_a_name(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    options = help_of(name, capsys).partition("\n\n")[2].partition(EXAMPLES)[0].partition("Options:")[2]
    assert not re.search(r"\w-$", options, re.MULTILINE)


GROUPS = [[], ["perf"], ["batch"], ["batch", "azure"], ["deploy"]]


@pytest.mark.parametrize("words", GROUPS)
def test_the_examples_of_a_group_parse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = help_of(" ".join(words), capsys).partition(EXAMPLES)[2].splitlines()
    assert len(lines) >= 3
    for line in lines:
        typed = shlex.split(line)[1:]
        name = max((each for each in ALL if typed[: len(each.split())] == each.split()), key=len)
        ALL[name].make_context(name, typed[len(name.split()) :])


def test_a_command_that_moved_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "invoke", "reviews", "--input", "a.csv"]) == 2
    assert capsys.readouterr().err.endswith("Type hfx batch azure invoke.\n")


@pytest.mark.parametrize("words", [*GROUPS, ["batch", "azure", "job"]])
def test_a_group_alone_prints_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    alone = capsys.readouterr()
    assert alone.out == help_of(" ".join(words), capsys)
    assert alone.err == ""


def test_help_is_as_wide_as_the_terminal_and_cuts_no_summary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (60, 170):
        monkeypatch.setenv("COLUMNS", str(width))
        text = help_of("batch", capsys).partition(EXAMPLES)[0]
        assert width - 60 < max(map(len, text.splitlines())) <= width
        assert "..." not in text.partition("Commands:")[2]


def completed(line: str, folder: Path) -> list[str]:
    """Return the completions of TAB at the end of `line`."""
    words = {"_HFX_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(RUN, capture_output=True, text=True, check=False, env={**os.environ, **words}, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_names_of_models_are_completed_from_the_repository(tmp_path: Path) -> None:
    for name in ("sentiment", "stories"):
        folder = tmp_path / "model_repository" / name
        folder.mkdir(parents=True)
        (folder / "hfx.json").touch()
    assert completed("hfx infer s", tmp_path) == ["sentiment", "stories"]
    assert completed("hfx verify --repository model_repository st", tmp_path) == ["stories"]
    assert completed("hfx deploy docker sentiment st", tmp_path) == ["stories"]
    assert completed("hfx remove --repository elsewhere s", tmp_path) == []


def test_completion_of_model_names_is_empty_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = type("Context", (), {"params": {"url": "127.0.0.1:1"}})
    assert connection.model_names(context, "") == []
