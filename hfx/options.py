"""Options of the command line, as data: hfx.cli.commands makes typer's of them.

An option is the annotation of a command's parameter, or a field of a dataclass that stands for several options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

OPTION = "option"  # in a field's metadata: its Option
Value = TypeVar("Value")


@dataclass(frozen=True, init=False)
class Option:
    """An option with `names` (none: the name of its parameter); `settings` are the keywords of typer.Option."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    def __init__(self, *names: str, **settings: Any) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "settings", settings)


def option(default: Value, help: str, *names: str, **settings: Any) -> Value:
    """A field that is an option, for the body of a dataclass.

    Without `names` the option has the field's; one that is False by default is a flag.
    """
    return field(default=default, metadata={OPTION: Option(*names, help=help, **settings)})
