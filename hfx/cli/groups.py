"""Options that belong together, as one frozen dataclass: a command's parameter of such a type stands for its fields.

Each field is an option in typer's annotations, and its name is what it sets (a tensor, an argument).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from typer.models import OptionInfo


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """FUNCTION with the fields of its dataclass parameters as options of their own."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }

    @functools.wraps(function)
    def run(**options: Any) -> None:
        made = {
            name: group(**{field.name: options.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**options, **made)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += _members(groups[name]) if name in groups else [parameter]
    by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = signature.replace(parameters=by_name)  # type: ignore[attr-defined]
    return run


def given(options: Any) -> dict[str, Any]:
    """The fields of a group that the user gave, by name; typer's lists of nothing are none."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in values.items() if value is not None and value != []}


def flag(group: type, field: str) -> str:
    """How the option of FIELD is typed."""
    annotation = get_type_hints(group, include_extras=True)[field]
    option = next(each for each in annotation.__metadata__ if isinstance(each, OptionInfo))
    # In an annotation the first name stands where a default would be; typer sorts that out only for itself.
    typed = [name for name in (option.default, *(option.param_decls or ())) if isinstance(name, str)]
    return typed[0].partition("/")[0] if typed else f"--{field.replace('_', '-')}"


def _members(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(f.name, kind, default=f.default, annotation=types[f.name]) for f in fields(group)]
