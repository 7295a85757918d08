"""Parsed pages of the documents: their code blocks and commands."""

from __future__ import annotations

import re
from pathlib import Path

from hfx.cli.commands import COMMANDS, load

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
SHELLS = ("bash", "sh", "text")
# Pages whose every line a test types.
TYPED = [
    page
    for page in DOCUMENTS
    if page == "README.md" or re.match(r"docs/(quickstart|install|by-hand|tutorial-.*|from-.*)\.md", page)
]


def blocks(page: str, *languages: str) -> list[str]:
    """Return the code blocks of `languages` in a page, in order."""
    return [text for _, text in tagged_blocks(page, *languages)]


def tagged_blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Return the language and text of each code block of `languages`, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(language, body) for language, body in found if language in languages]


def commands(page: str, program: str) -> list[str]:
    """Return the lines of a page's shell blocks that run a program; `text` blocks have lines that no test runs."""
    lines = "\n".join(blocks(page, *SHELLS)).replace("\\\n", " ").splitlines()
    return [line for line in map(str.strip, lines) if line.startswith(program + " ") or line == program]


def parse(words: list[str]) -> None:
    """Parse the words after `hfx`. Raises what click raises for an unknown command or option."""
    name, table = words[0], COMMANDS
    command, rest = load(name, table), words[1:]
    while members := getattr(command, "table", None):
        name, *rest = rest
        command = load(name, members)
    command.make_context(name, rest, resilient_parsing=False)
