"""The prompts of a request: texts that are put before its own texts, or into a template beside them."""

from __future__ import annotations

from collections.abc import Mapping

from .checks import NAME_LENGTH
from .errors import BOTH_ARE_SENT, HAS_NO_PROMPTS, ROWS_DIFFER, InvalidInput
from .inputs import Tensors, column, decoded
from .settings import Settings
from .tasks import PROMPTS

PROMPT_NAME, TEXT = "prompt_name", "text_input"


def prompts(tensors: Tensors, rows: int, settings: Settings) -> list[bytes]:
    """Return the prompt of each row of a request: its `prompt`, the prompt named `prompt_name`, or the model's own.

    In a model with `roles`, a request may have both a name and a prompt: the name then only selects the role. Raises
    InvalidInput for both in other models, for an unknown name, and if the model has no prompts.
    """
    given = [name for name in PROMPTS if name in tensors]
    if not given:
        return [settings.default_prompt.encode()] * rows
    if settings.prompts is None:
        raise InvalidInput(HAS_NO_PROMPTS % given[0])
    if len(given) > 1 and not settings.roles:
        raise InvalidInput(BOTH_ARE_SENT % tuple(given))
    texts: list[str] = []
    for name in given:
        values = column(name, tensors)
        if len(values) != rows:
            raise InvalidInput(ROWS_DIFFER % (TEXT, rows, name, len(values)))
        texts = [decoded(name, value) for value in values]
        if name == PROMPT_NAME:
            texts = [_prompt(text, settings.prompts) for text in texts]
    return [text.encode() for text in texts]


def _prompt(name: str, known: Mapping[str, str]) -> str:
    if name not in known:
        names = ", ".join(f"'{each}'" for each in known)
        raise InvalidInput(f"prompt_name is '{name[:NAME_LENGTH]}'; the model's prompts are {names}")
    return known[name]
