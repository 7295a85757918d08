"""What the documents say, held against the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hfx.cli import reference
from hfx.cli.commands import COMMANDS, load

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(program: str) -> list[str]:
    """The README's command lines of a program, in code blocks and in the table."""
    blocks = (
        "\n".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL))
        + "\n"
        + "\n".join(re.findall(r"`([^`\n]+)`", README))
    )
    lines = [line.split("#")[0].strip() for line in blocks.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith(program + " ")]


def test_every_page_is_as_its_generator_makes_it() -> None:
    for name, text in reference.pages().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"run `make docs` ({name})"


@pytest.mark.parametrize("line", commands("hfx"))
def test_readme_commands_parse(line: str) -> None:
    words = shlex.split(line)[1:]
    if words[0] not in COMMANDS:
        assert words[0].startswith("-")
        return
    command = load(words[0])
    command.make_context(words[0], words[1:], resilient_parsing=False)


@pytest.mark.parametrize("line", commands("make"))
def test_readme_targets_exist(line: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(shlex.split(line)[1])}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "docs/ARCHITECTURE.md", "docs/serving.md"])
def test_paths_in_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:hfx|bench|tests|docker)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
