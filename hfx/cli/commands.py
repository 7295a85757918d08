"""Which commands there are, and loading one only when it is asked for.

This file knows names and files; it must not know what a command does.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hfx.errors import UsageError

COMMANDS = {
    "export": "hfx.cli.export",
    "verify": "hfx.cli.verify",
    "lint": "hfx.cli.lint",
    "list": "hfx.cli.list",
    "serve": "hfx.cli.serve",
    "infer": "hfx.cli.infer",
}


class Commands(TyperGroup):
    """The group of all commands, each loaded from its file."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of a user's way."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command CMD_NAME; UsageError with the nearest names when there is none."""
        if cmd_name in COMMANDS:
            return load(cmd_name)
        if ctx.resilient_parsing or cmd_name.startswith("-"):
            return None
        near = get_close_matches(cmd_name, COMMANDS)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"There is no command {cmd_name!r}.", f"{hint}`hfx --help` lists them.")


def load(name: str) -> Any:
    """The parser of the command NAME, with the options that all commands take."""
    function = importlib.import_module(COMMANDS[name]).command
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(name, context_settings={"help_option_names": ["-h", "--help"]})(_with_shared_options(function))
    return typer.main.get_command(single)


def _with_shared_options(function: Callable[..., None]) -> Callable[..., None]:
    """FUNCTION that also takes --json and --debug, and leaves them to the Reporter."""

    @functools.wraps(function)
    def run(*arguments: Any, json: bool, debug: bool, **options: Any) -> None:
        function(*arguments, **options)

    signature = inspect.signature(function, eval_str=True)
    shared = [_flag("json", "Print one JSON object on stdout."), _flag("debug", "Show tracebacks.")]
    parameters = [*signature.parameters.values(), *shared]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _flag(name: str, text: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(f"--{name}", help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
