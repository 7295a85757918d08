"""Rules about the inputs and outputs that a configuration declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hfx.repository.finding import Problem
from hfx.repository.subject import Subject


def duplicate(subject: Subject) -> Iterator[Problem]:
    """HFX301."""
    for _, _, config in subject.parsed():
        message = config.message
        inputs = [*(i.name for i in message.input), *(name for b in message.batch_input for name in b.target_name)]
        for kind, names in (("input", inputs), ("output", [o.name for o in message.output])):
            for name in (name for name, count in Counter(names).items() if count > 1):
                yield Problem(
                    config.path, config.line(kind, name), f"{kind} {name!r} is declared twice.", "Declare it once."
                )


def incomplete(subject: Subject) -> Iterator[Problem]:
    """HFX302."""
    for _, _, config in subject.parsed():
        for kind, tensors in (("input", config.message.input), ("output", config.message.output)):
            if not tensors:
                yield Problem(config.path, None, f"declares no {kind}.", f"Declare every {kind}.")
            for tensor in tensors:
                if not (tensor.name and tensor.data_type and tensor.dims):
                    yield Problem(
                        config.path,
                        config.line(kind, tensor.name or kind),
                        f"{kind} {tensor.name!r} lacks a name, data_type or dims.",
                        "Write all three: the server does not guess them.",
                    )


def wrong_dimension(subject: Subject) -> Iterator[Problem]:
    """HFX303."""
    for _, _, config in subject.parsed():
        for kind, tensors in (("input", config.message.input), ("output", config.message.output)):
            for tensor in tensors:
                if any(size == 0 or size < -1 for size in tensor.dims):
                    yield Problem(
                        config.path,
                        config.line(kind, tensor.name),
                        f"{kind} {tensor.name!r} has dims {list(tensor.dims)}.",
                        "Use positive sizes, and -1 for any size.",
                    )
