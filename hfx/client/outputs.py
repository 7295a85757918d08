"""Single values out of a model's output tensors, or an error that names what is missing.

Tensors carry a leading batch dimension of 1, as one text is one request. Nothing here knows tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hfx.errors import ServerError
from hfx.names import TRUNCATED_TOKENS

if TYPE_CHECKING:
    from hfx.client.tensors import Array, Tensors


def tensor(outputs: Tensors, name: str) -> Array:
    """The tensor NAME; raises ServerError if the answer lacks it."""
    if name not in outputs:
        raise ServerError(
            f"The model's answer has no tensor {name!r} but {', '.join(sorted(outputs)) or 'none at all'}.",
            "Is it a model for this task? `hfx list` tells.",
        )
    return outputs[name]


def scalar(outputs: Tensors, name: str) -> Any:
    """The only value of tensor NAME."""
    array = tensor(outputs, name)
    if array.size != 1:
        raise ServerError(f"The model's tensor {name!r} has {array.size} values instead of one.")
    return array.item()


def text(outputs: Tensors, name: str) -> str:
    """The only value of tensor NAME, a string."""
    return as_text(scalar(outputs, name), name)


def as_text(value: object, name: str) -> str:
    """VALUE of tensor NAME as a string."""
    if not isinstance(value, bytes):
        raise ServerError(f"The model's tensor {name!r} holds no text.")
    return value.decode("utf-8", "replace")


def number(outputs: Tensors, name: str) -> int:
    """The only value of tensor NAME, a whole number."""
    value = scalar(outputs, name)
    if not isinstance(value, int):
        raise ServerError(f"The model's tensor {name!r} holds no whole number.")
    return value


def truncated_tokens(outputs: Tensors) -> int:
    """How many tokens of the text the model did not get to see; 0 where it does not tell."""
    return number(outputs, TRUNCATED_TOKENS) if TRUNCATED_TOKENS in outputs else 0
