"""Model, folder and tensor names, in one place.

Clients, generated configurations and the Python backends meet only through these names (the backends, an island,
repeat them as literals; a test holds the two against each other). Nothing here does I/O.
"""

from __future__ import annotations

import re
from enum import StrEnum

from hfx.errors import UsageError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]*")
NAME_MAX_LENGTH = 128  # a folder name with the longest suffix stays far below the 255 bytes that file systems allow

MANIFEST_FILE = "hfx.json"

# Members of an ensemble NAME are NAME + suffix.
TOKENIZE_SUFFIX = "_tokenize"
NET_SUFFIX = "_net"
POSTPROCESS_SUFFIX = "_postprocess"
MEMBER_SUFFIXES = (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX)


class Task(StrEnum):
    """What a published model answers; values are the hub's pipeline tags."""

    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    QUESTION_ANSWERING = "question-answering"
    FEATURE_EXTRACTION = "feature-extraction"
    ZERO_SHOT_CLASSIFICATION = "zero-shot-classification"


# Tensors that clients see (ARCHITECTURE: tensor names).
TEXT_INPUT = "text_input"
CANDIDATE_LABELS = "candidate_labels"
TOP_K = "top_k"
MULTI_LABEL = "multi_label"
QUESTION = "question"
CONTEXT = "context"
LABEL = "label"
SCORE = "score"
ENTITIES = "entities"
ANSWER = "answer"
START = "start"
END = "end"
EMBEDDING = "embedding"
TRUNCATED_TOKENS = "truncated_tokens"

# Tensors between the members of an ensemble.
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
TOKEN_TYPE_IDS = "token_type_ids"
ITEM_SHAPE = "item_shape"
LOGITS = "logits"
START_LOGITS = "start_logits"
END_LOGITS = "end_logits"
OFFSETS = "offsets"
SPANS = "spans"


def check_name(name: str) -> str:
    """Return NAME when it can be a model's name; raise UsageError otherwise.

    A NAME is `[a-z0-9][a-z0-9_-]*`, at most 128 characters, and does not end like a member of an ensemble
    (`_tokenize`, `_net`, `_postprocess`), whose folders would collide with another model's.
    """
    if not NAME_PATTERN.fullmatch(name) or len(name) > NAME_MAX_LENGTH:
        raise UsageError(
            f"{name!r} can't be a model's name.",
            f"Use lower-case letters, digits, '_' and '-', at most {NAME_MAX_LENGTH}, a letter or digit first.",
        )
    if name.endswith(MEMBER_SUFFIXES):
        raise UsageError(
            f"{name!r} ends like a member of an ensemble.",
            f"Choose a name without one of the endings {', '.join(MEMBER_SUFFIXES)}.",
        )
    return name


def default_name(model: str) -> str:
    """The NAME for a hub id or folder when the user gives none: its last part, in a NAME's alphabet.

    >>> default_name("facebook/bart-large-cnn")
    'bart-large-cnn'
    """
    last = model.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower()
    return check_name(re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_") or last)
