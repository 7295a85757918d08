"""Triton's request parameters, as far as they are settings of a model.

A caller's parameters are those of an infer request, and at the generate endpoint every JSON key that is no input (also
those in "parameters"). Triton hands them to each model of an ensemble and ignores what it does not know: a setting that
is misspelt would be no setting.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from .tasks import TASKS

# What Triton reads itself. It takes these out of infer requests, but not out of those of the generate endpoint (2.51).
TRITON_NAMES = frozenset(
    {"id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"}
)
TRITON_PREFIX = "triton_"

KINDS = {int: "a whole number", bool: "true or false"}
NAME_LENGTH = 60  # characters of an unknown name that are compared and shown: it may be as long as a body


def parse_parameters(text: str) -> dict[str, Any]:
    """The parameters in `request.parameters()`, a JSON object, without Triton's own. Raises ValueError."""
    if text in ("", "{}"):
        return {}
    parameters = json.loads(text)
    return {name: parameters[name] for name in parameters if not _is_tritons(name)}


def encoder_settings(text: str, task: str) -> dict[str, Any]:
    """The settings of an encoder's `task` in `request.parameters()`. Raises ValueError for any other parameter."""
    parameters = parse_parameters(text)
    types = {name: kind for name, kind in TASKS[task].options.items() if kind in KINDS}
    for name, value in parameters.items():
        if name not in types:
            short = name[:NAME_LENGTH]
            raise ValueError(f"{short} is no parameter of this model; {_hint(short, types)}")
        if type(value) is not types[name]:
            raise ValueError(f"{name} is {reprlib.repr(value)}; allowed: {KINDS[types[name]]}")
    return parameters


def nearest(name: str, names: Collection[str]) -> str | None:
    """The one of `names` that `name` may have been meant to be."""
    near = [other for other in names if other.startswith(name)] or get_close_matches(name, names, 1, 0.5)
    return near[0] if near else None


def _is_tritons(name: str) -> bool:
    return name in TRITON_NAMES or name.startswith(TRITON_PREFIX)


def _hint(name: str, types: Collection[str]) -> str:
    if not types:
        return "it takes none"
    near = nearest(name, types)
    return f"did you mean {near}?" if near else f"its parameters are {', '.join(types)}"
