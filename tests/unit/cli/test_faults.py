"""An error of any system call on the files of a command ends it with its line and its exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rigs.files import repositories
from tests.rigs.files.batch_jobs import echo, table
from tests.rigs.machine.faults import Ended, Faults
from tests.rigs.machine.tiers import full

COMMAND = """
import contextlib, io
from hfx.cli import main

for words in COMMANDS:  # so that forks need not import the modules
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(words)

def work(arm, home, *words):
    output = io.StringIO()
    arm()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main([*words, "--json"])
    disarm()
    text = output.getvalue()
    assert "Traceback" not in text and "Unexpected" not in text, text
    assert code == 0 or code in (1, 2, 3, 7) and ("Error: " in text or code == 7), (code, text)
"""
COMMANDS = [
    ("list", "--repository", "HOME/models"),
    ("lint", "--repository", "HOME/models"),
    ("remove", "m", "--repository", "HOME/models"),
    ("batch", "show", "HOME/job"),
    ("batch", "logs", "HOME/job"),
    ("batch", "cancel", "HOME/job"),
    ("batch", "publish", "HOME/job"),
    ("batch", "list", "HOME"),
]


@pytest.mark.slow
@pytest.mark.parametrize("step", [19, full(1)])
def test_an_error_at_any_call_of_a_command_is_a_line_and_an_exit_code(step: int, memory: Path) -> None:
    template, home = memory / "template", memory / "home"
    (template / "models").mkdir(parents=True)
    repositories.build(template / "models")
    planned = echo().plan(template / "job", [table(memory / "a.csv", [{"text": "a"}, {"text": "b"}])], size=1)
    echo().score(planned)
    shutil.copytree(template, memory / "imports")
    imports = [[word.replace("HOME", str(memory / "imports")) for word in words] for words in COMMANDS]
    with Faults(f"COMMANDS = {imports!r}\n{COMMAND}") as faults:
        for words in COMMANDS:

            def prepare(words: tuple[str, ...] = words) -> tuple[str, ...]:
                shutil.rmtree(home, ignore_errors=True)
                shutil.copytree(template, home)
                return str(home), *(word.replace("HOME", str(home)) for word in words)

            def check(ended: Ended) -> None:
                assert not ended.error

            print(*words[:2], faults.sweep(prepare, check, home, step))
