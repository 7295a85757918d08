"""docs/cli.md and docs/lint.md, made from the code: `python -m hfx.cli.reference docs`. A test holds them together."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hfx.cli.commands import COMMANDS, load

WIDTH = 110


def pages() -> dict[str, str]:
    """File name -> text of every generated page."""
    return {"cli.md": command_page(), "lint.md": lint_page()}


def command_page() -> str:
    """The help of every command, and the exit codes."""
    parts = ["# Command line", "", "Made from `--help` by `make docs`. Exit codes stand at the end.", ""]
    for name, command in _commands("", COMMANDS):
        parts += [f"## hfx {name}", "", "```", _help(command, name), "```", ""]
    return "\n".join([*parts, "## Exit codes", "", *_exit_codes(), ""])


def _commands(prefix: str, table: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, the members of a group instead of it."""
    for name in table:
        command = load(name, table)
        if members := getattr(command, "table", None):
            yield from _commands(f"{prefix}{name} ", members)
        else:
            yield prefix + name, command


def lint_page() -> str:
    """The rules of `hfx lint`."""
    from hfx.repository.lint import RULES

    rows = [f"| {rule.id} | {rule.severity} | {rule.title} |" for rule in RULES]
    head = ["# Rules of `hfx lint`", "", "Made by `make docs`.", "", "| id | severity | rule |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _help(command: Any, name: str) -> str:
    context = command.context_class(command, info_name=f"hfx {name}", terminal_width=WIDTH, max_content_width=WIDTH)
    text: str = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def _exit_codes() -> list[str]:
    from hfx import errors

    by_code: dict[int, list[str]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.HfxError):
            by_code.setdefault(value.exit_code, []).append(value.__name__)
    rows = [f"| {code} | {', '.join(sorted(classes))} |" for code, classes in sorted(by_code.items())]
    return ["| code | errors |", "|---|---|", "| 0 | done |", *rows, "| 130 | interrupted |"]


if __name__ == "__main__":
    for file, content in pages().items():
        (Path(sys.argv[1]) / file).write_text(content, encoding="utf-8")
