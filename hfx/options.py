"""Fields of dataclasses that are options of the command line (hfx.cli.commands makes them so)."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar

from typer import Option

OPTION = "option"  # in a field's metadata: typer's description of it
Value = TypeVar("Value")


def option(default: Value, help: str, *names: str, **settings: Any) -> Value:
    """A field that is an option, for the body of a dataclass; `settings` are further arguments of typer.Option.

    Without `names` the option has the field's; one that is False by default is a flag.
    """
    return field(default=default, metadata={OPTION: Option(*names, help=help, **settings)})
