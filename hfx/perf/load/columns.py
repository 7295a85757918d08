"""Which column of a file goes into which tensor of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hfx.errors import UsageError
from hfx.names import CANDIDATE_LABELS, CONTEXT, QUESTION, TEXT_INPUT

TEXTS = (TEXT_INPUT, QUESTION, CONTEXT, CANDIDATE_LABELS)  # what no model does without, where it takes it
USUAL: Mapping[str, tuple[str, ...]] = {TEXT_INPUT: (TEXT_INPUT, "text", "prompt", "sentence", "document")}


def text_tensors(inputs: Iterable[str]) -> tuple[str, ...]:
    """The tensors that each request must have, of a model with these INPUTS; raises UsageError where there is none."""
    given = set(inputs)
    found = tuple(name for name in TEXTS if name in given)
    if not found:
        raise UsageError(
            f"The model takes no text: it takes {', '.join(sorted(given)) or 'nothing'}.",
            "Ask for the model itself, not for a member of it: `hfx list` shows the names.",
        )
    return found


def parse_columns(given: Sequence[str], inputs: Iterable[str]) -> dict[str, str]:
    """Tensor -> column, of `COLUMN` for the text or `TENSOR=COLUMN`; what is not given has the tensor's own name.

    Raises UsageError for a tensor that the model, whose INPUTS these are, does not have.
    """
    inputs = list(inputs)
    needed = text_tensors(inputs)
    found: dict[str, str] = {}
    for part in given:
        tensor, column = _pair(part, needed)
        if tensor not in inputs or tensor in found:
            reason = "is given twice" if tensor in found else f"is none of the model's inputs: {', '.join(inputs)}"
            raise UsageError(f"The column of {tensor!r} can't be set: it {reason}.", "Give TENSOR=COLUMN once each.")
        found[tensor] = column
    return dict.fromkeys(needed, "") | found


def located(columns: Mapping[str, str], present: Collection[str], path: object) -> dict[str, str]:
    """COLUMNS with a column for each tensor, of those PRESENT in PATH. Raises UsageError with what is there."""
    return {tensor: _located(tensor, column, present, path) for tensor, column in columns.items()}


def _located(tensor: str, column: str, present: Collection[str], path: object) -> str:
    wanted = (column,) if column else USUAL.get(tensor, (tensor,))
    found = next((name for name in wanted if name in present), None)
    if found is None:
        option = "--column COLUMN" if tensor == TEXT_INPUT else f"--column {tensor}=COLUMN"
        raise UsageError(
            f"{path} has no column {wanted[0]!r}; its columns are {', '.join(present) or 'none'}.",
            f"Say which one is the {tensor} with {option}.",
        )
    return found


def _pair(part: str, needed: Sequence[str]) -> tuple[str, str]:
    tensor, equals, column = part.partition("=")
    if not equals:
        if len(needed) > 1 and needed[0] != TEXT_INPUT:
            raise UsageError(
                f"The column {part!r} could be the {' or the '.join(needed)}.",
                f"Give {' and '.join(f'{name}=COLUMN' for name in needed)}.",
            )
        tensor, column = needed[0], part
    if not column:
        raise UsageError(f"{part!r} names no column.", "Give COLUMN, or TENSOR=COLUMN.")
    return tensor, column
