"""The format of `--help`: usage, text, commands, options under the headings of their groups, examples.

Typer and click do the work, with these differences: lines are as wide as the terminal, summaries of commands are not
cut, options show their values (TEXT, N, cpu|gpu) instead of a Python type, and examples are printed unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from typer.core import TyperCommand

EXAMPLES = "\nExamples:\n"
# The settings of contexts. Without max_content_width, click limits lines to 80 characters.
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 1000}
HYPHEN = "\N{NON-BREAKING HYPHEN}"  # it keeps an option's name on one line
OPTIONS, GLOBAL = "Options", "Global options"
METAVARS = {str: "TEXT", int: "N", float: "NUMBER", Path: "PATH"}


class PlainHelp:
    """The parts of a click command's help that hfx writes; a command's class inherits this class before click's."""

    params: list[Any]
    epilog: str | None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the part of the usage line after the command's name."""
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_usage, arguments), *(["COMMAND [ARGS]..."] if hasattr(self, "commands") else [])]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, the arguments, and the options under their headings."""
        if hasattr(self, "commands"):
            _write(formatter, "Commands", _summaries(self, ctx))
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OPTIONS: []}
        last: list[tuple[str, str]] = []
        for each in self.get_params(ctx):  # type: ignore[attr-defined]
            if record := each.get_help_record(ctx):
                if each.param_type_name == "argument":
                    sections["Arguments"].append((_argument(each), record[1].replace("  [required]", "")))
                else:
                    heading = GLOBAL if each.name == "help" else getattr(each, "rich_help_panel", None) or OPTIONS
                    (last if heading == GLOBAL else sections.setdefault(heading, [])).append(record)
        for heading, rows in (sections | {GLOBAL: last}).items():
            _write(formatter, heading, rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, line by line as they are in the docstring."""
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(f"{self.epilog}\n")


class Command(PlainHelp, TyperCommand):
    """A command with the help of this module."""


def text_and_examples(docstring: str | None) -> tuple[str, str | None]:
    """Split a command's docstring into the text of its help and the examples at its end."""
    text, heading, examples = inspect.cleandoc(docstring or "").partition(EXAMPLES)
    return text, f"{heading.strip()}\n{examples}" if heading else None


def metavar(kind: Any) -> str | None:
    """Return the word for a value of type `kind` in the help of an option."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType, list):
        return metavar(next(each for each in get_args(kind) if each is not type(None)))
    return METAVARS.get(kind)


def _argument(parameter: Any) -> str:
    """Return an argument's name: its metavar without the brackets of usage lines."""
    return str(parameter.metavar or parameter.name.upper()).strip("[].")


def _usage(parameter: Any) -> str:
    word = str(parameter.metavar or parameter.name.upper())
    word += "..." if parameter.nargs == -1 and not word.endswith(("...", "]")) else ""
    return word if parameter.required or word.startswith("[") else f"[{word}]"


def _summaries(group: Any, ctx: Any) -> list[tuple[str, str]]:
    """Return each command with the first sentence of its help."""
    return [(name, group.get_command(ctx, name).get_short_help_str(1000)) for name in group.list_commands(ctx)]


def _write(formatter: Any, heading: str, rows: Iterable[tuple[str, str]]) -> None:
    if rows := [(name, text.replace("-", HYPHEN)) for name, text in rows]:
        with formatter.section(heading):
            formatter.write_dl(rows)
        formatter.buffer = [text.replace(HYPHEN, "-") for text in formatter.buffer]
