"""What a command line that can't be parsed says: the option, what was typed, and what it should have been."""

from __future__ import annotations

from typing import Any

KINDS = {"float_parsing": "a number", "int_parsing": "a whole number", "int_from_float": "a whole number"}


def parsing_message(error: Any) -> str:
    """The message of a click error; of a value of the wrong kind, in other words than pydantic's."""
    entry, parameter = _entry(error), getattr(error, "param", None)
    if entry is None or parameter is None:
        return str(error.format_message())
    option = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
    kind, context = entry["type"], entry.get("ctx", {})
    if kind in KINDS:
        return f"{option} {entry['input']!r} is not {KINDS[kind]}."
    if kind == "greater_than_equal":
        return f"{option} {entry['input']} is below {context['ge']}."
    if kind == "less_than_equal":
        return f"{option} {entry['input']} is above {context['le']}."
    if kind == "value_error":  # of a choice, with the choices
        return f"{option}: {context['error']}"
    return str(error.format_message())


def _entry(error: Any) -> dict[str, Any] | None:
    """The first error of pydantic, with which typer >= 0.26 converts values; None for any other cause."""
    errors = getattr(error.__cause__ or error.__context__, "errors", None)
    found: list[dict[str, Any]] = errors() if callable(errors) else []
    return found[0] if found else None
