"""Which commands there are, and loading one only when it is asked for.

A command is a module with a function `command`; a module with a table `COMMANDS` is a group of such, whose help is the
first line of its docstring.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
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
    "perf": "hfx.cli.perf",
    "tune": "hfx.cli.perf.tune",
}


HELP = {"help_option_names": ["-h", "--help"]}


class Commands(TyperGroup):
    """The group of the commands in `table`, each loaded from its file."""

    table: Mapping[str, str] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, from export to tuning."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command CMD_NAME; UsageError with the nearest names when there is none."""
        if cmd_name in self.table:
            return load(cmd_name, self.table)
        if ctx.resilient_parsing or cmd_name.startswith("-"):
            return None
        near = get_close_matches(cmd_name, self.table)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"There is no command {cmd_name!r}.", f"{hint}`{ctx.command_path} --help` lists them.")


def load(name: str, table: Mapping[str, str] = COMMANDS) -> Any:
    """The parser of the command NAME of TABLE, with the options that all commands take; of a group, the group."""
    module = importlib.import_module(table[name])
    if hasattr(module, "COMMANDS"):
        return _group(name, module)
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(name, context_settings=HELP)(_with_shared_options(module.command))
    return typer.main.get_command(single)


def _group(name: str, module: Any) -> Any:
    made = type("Members", (Commands,), {"table": module.COMMANDS})
    title = module.__doc__.partition("\n")[0]
    group = typer.Typer(
        name=name,
        cls=made,
        help=title,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP,
    )
    group.callback(no_args_is_help=True)(_with_shared_options(lambda: None))
    return typer.main.get_command(group)


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
