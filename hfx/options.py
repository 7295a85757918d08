"""Options of the command line as data, from which hfx.cli.commands makes options of typer.

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
    """An option with `names` (default: the name of its parameter); `settings` are keyword arguments of typer.Option."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    def __init__(self, *names: str, **settings: Any) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "settings", settings)


def option(default: Value, help: str, *names: str, **settings: Any) -> Value:
    """Return a field of a dataclass that is an option.

    Without `names`, the option has the name of the field. An option that is False by default is a flag.
    """
    return field(default=default, metadata={OPTION: Option(*names, help=help, **settings)})
