"""Command groups whose commands are imported only when they run, and dataclasses as groups of options.

A command is a module with a function `command`, or MODULE:FUNCTION. A module with a table `COMMANDS` is a group of
commands, whose help is the first line of its docstring and its examples; `MOVED` has commands that are elsewhere now.
A parameter of a frozen dataclass type stands for its fields. A field that hfx.options.option made, or that is annotated
with an Option or with typer's Argument, is an option; a tuple field may be given several times. A field is named like
the tensor or argument that it sets. The dataclass may name the heading of its options in `PANEL`. The docstring of a
command may end with lines of `Examples:`.

Only documented parts of typer are used. Each option gets its names and its metavar here, because typer 0.27.0 to 0.27.2
took an option's name from its metavar.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from hfx.cli.help import GLOBAL, SETTINGS, Command, PlainHelp, metavar, text_and_examples
from hfx.errors import UsageError
from hfx.options import OPTION, Option

COMMANDS = {
    "export": "hfx.cli.export",
    "verify": "hfx.cli.verify",
    "lint": "hfx.cli.repository:lint",
    "list": "hfx.cli.repository:list_",
    "serve": "hfx.cli.serve",
    "reload": "hfx.cli.repository:reload",
    "remove": "hfx.cli.repository:remove",
    "infer": "hfx.cli.infer",
    "perf": "hfx.cli.perf",
    "tune": "hfx.cli.perf.tune",
    "batch": "hfx.cli.batch",
    "deploy": "hfx.cli.deploy",
    "demo": "hfx.cli.demo",
}
PLAIN: Mapping[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}


class Commands(PlainHelp, TyperGroup):
    """The group of the commands in `table`, each loaded from its file."""

    table: Mapping[str, str] = COMMANDS
    moved: Mapping[str, str] = {}  # former name of a command -> its new name

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command CMD_NAME. Raises UsageError with the most similar names if there is none."""
        if cmd_name in self.table:
            return load(cmd_name, self.table)
        if ctx.resilient_parsing or cmd_name.startswith("-"):
            return None
        if cmd_name in self.moved:
            raise UsageError(f"{ctx.command_path} {cmd_name} has another name.", f"Type {self.moved[cmd_name]}.")
        near = get_close_matches(cmd_name, self.table)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"There is no command {cmd_name!r}.", f"{hint}`{ctx.command_path} --help` lists them.")


def load(name: str, table: Mapping[str, str] = COMMANDS) -> Any:
    """Return the click command, or group, NAME of TABLE; a command also takes the options of all commands."""
    path, _, function = table[name].partition(":")
    module = importlib.import_module(path)
    if not function and hasattr(module, "COMMANDS"):
        return _group(name, module)
    single = typer.Typer(**PLAIN)
    command = getattr(module, function or "command")
    text, examples = text_and_examples(command.__doc__)
    single.command(name, cls=Command, help=text, epilog=examples, context_settings=SETTINGS)(
        _with_shared_options(command)
    )
    return typer.main.get_command(single)


def _group(name: str, module: Any) -> Any:
    group_class = type("Members", (Commands,), {"table": module.COMMANDS, "moved": getattr(module, "MOVED", {})})
    title, examples = text_and_examples(module.__doc__)
    group = typer.Typer(
        name=name,
        cls=group_class,
        help=title.partition("\n")[0],
        epilog=examples,
        context_settings=SETTINGS,
        **PLAIN,
    )
    group.callback(no_args_is_help=True)(_with_shared_options(lambda: None))
    return typer.main.get_command(group)


def _with_shared_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return FUNCTION with the options --json and --debug, which it ignores, because the Reporter reads them."""

    @functools.wraps(function)
    def run(*arguments: Any, json: bool, debug: bool, **options: Any) -> None:
        function(*arguments, **options)

    signature = inspect.signature(function, eval_str=True)
    shared = [_flag("json", "Print one JSON object on stdout."), _flag("debug", "Show tracebacks.")]
    parameters = [
        each.replace(annotation=_for_typer(each.name, each.annotation, each.default))
        for each in (*signature.parameters.values(), *shared)
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _flag(name: str, text: str) -> inspect.Parameter:
    annotation = Annotated[bool, Option(help=text, rich_help_panel=GLOBAL)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _for_typer(name: str, annotation: Any, default: Any) -> Any:
    """Return the annotation of the parameter NAME, with typer's own Option in the place of hfx's Option."""
    marks = getattr(annotation, "__metadata__", ())
    option = next((mark for mark in marks if isinstance(mark, Option)), None)
    if option is None:
        return annotation
    kind = annotation.__origin__
    settings = dict(option.settings)
    settings["metavar"] = settings.get("metavar") or metavar(kind)
    return Annotated[kind, typer.Option(*option.names or _names(name, kind, default), **settings)]


def _names(parameter: str, kind: Any, default: Any) -> tuple[str]:
    """Return the option's name for a `parameter` that names none; a flag that is False by default has no --no-NAME."""
    name = parameter.replace("_", "-")
    is_switch = bool in (kind, *get_args(kind)) and default is not False
    return (f"--{name}/--no-{name}" if is_switch else f"--{name}",)


# Groups of options


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Return FUNCTION with its dataclass parameters replaced by an option for each field."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }

    @functools.wraps(function)
    def run(**options: Any) -> None:
        values = {name: _values(group, options) for name, group in groups.items()}
        function(**options, **values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += _members(groups[name]) if name in groups else [parameter]
    by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = signature.replace(parameters=by_name)  # type: ignore[attr-defined]
    return run


def given(options: Any) -> dict[str, Any]:
    """Return field -> value for the options of a group that the user gave; an empty list counts as not given."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value not in (None, [], ())}


def flag(group: type, field: str) -> str:
    """Return the option of FIELD, as it is on the command line."""
    option = next(each for each in _options(group)[field].__metadata__ if isinstance(each, Option))
    return option.names[0].partition("/")[0] if option.names else f"--{field.replace('_', '-')}"


def _members(group: Any) -> list[inspect.Parameter]:
    panel = getattr(group, "PANEL", None)
    defaults = {
        each.name: inspect.Parameter.empty if each.default is MISSING else each.default for each in fields(group)
    }
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if _is_tuple(annotation) else defaults[name],
            annotation=_in_panel(_as_list(annotation) if _is_tuple(annotation) else annotation, panel),
        )
        for name, annotation in _options(group).items()
    ]


def _options(group: Any) -> dict[str, Any]:
    """Return field -> annotation for the fields of a group that are options."""
    types = get_type_hints(group, include_extras=True)
    annotations = {each.name: _annotation(each, types[each.name]) for each in fields(group)}
    return {name: annotation for name, annotation in annotations.items() if get_origin(annotation) is Annotated}


def _annotation(field: Field[Any], kind: Any) -> Any:
    """Return the annotation of a field: with the Option that hfx.options.option made, or unchanged."""
    return Annotated[kind, field.metadata[OPTION]] if OPTION in field.metadata else kind


def _in_panel(annotation: Any, panel: str | None) -> Any:
    """Return the annotation of an option, under the heading `panel` if it names no other heading."""
    [mark] = annotation.__metadata__
    if not isinstance(mark, Option):
        return annotation
    return Annotated[annotation.__origin__, Option(*mark.names, **{"rich_help_panel": panel, **mark.settings})]


def _is_tuple(annotation: Any) -> bool:
    return get_origin(annotation.__origin__) is tuple


def _as_list(annotation: Any) -> Any:
    """Return the annotation of a tuple field as a list, which typer needs."""
    return Annotated[(list[get_args(annotation.__origin__)[0]] | None, *annotation.__metadata__)]  # type: ignore[misc]


def _values(group: Any, options: dict[str, Any]) -> Any:
    """Return an instance of the group, and remove its values from `options`."""
    values = {}
    for name, annotation in _options(group).items():
        value = options.pop(name)
        values[name] = tuple(value or ()) if _is_tuple(annotation) else value
    return group(**values)
