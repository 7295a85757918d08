"""The table of the tasks of encoders; the modules of this package make their answers from the net's outputs.

The table imports no other package: clients read it without numpy, and the step of one task does not need the packages
of other tasks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

PROMPTS: Mapping[str, type] = {"prompt_name": str, "prompt": str}  # of models that have prompts
TOKENIZING = frozenset({*PROMPTS, "doc_stride", "stride", "long"})


@dataclass(frozen=True)
class Places:
    """The tensor with the characters of the tokens: its name, its value at padding, its number of columns."""

    tensor: str
    padding: int
    columns: int


@dataclass(frozen=True)
class Task:
    """The inputs, options and output of a task.

    `inputs` are the texts of a row in the tensors' order, `required` the other inputs that a request must have. Only
    some kinds of the task's models have the inputs `of_kinds`, and need them, too.
    `options` are the settings that a request may have, with their types; the tokenizing step reads those that are
    `tokenizing`, and passes the others on to the last step. `output` is the answer, or the best part of it. The module
    with the task's name in this folder makes the answer, unless the net does. Any row of a `nested` task may have
    several sequences, in tensors [rows, sequences, width]; models of other tasks may read windows in such tensors. With
    `of_masks`, the net's outputs are for mask tokens only.
    """

    output: str
    inputs: tuple[str, ...] = ("text_input",)
    required: tuple[str, ...] = ()
    of_kinds: tuple[str, ...] = ()
    options: Mapping[str, type] = field(default_factory=dict)
    tokenizing: frozenset[str] = TOKENIZING
    nested: bool = False
    of_masks: bool = False
    places: Places | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The inputs, the main one first."""
        return tuple(sorted(self.inputs, key=lambda name: name != "text_input"))

    @property
    def needed(self) -> tuple[str, ...]:
        """The inputs that a request must have, its main text first."""
        return (*self.texts, *self.required)

    @property
    def settings(self) -> tuple[str, ...]:
        """The inputs besides its texts that a request may have."""
        return (*self.required, *self.of_kinds, *self.options)

    def needed_by(self, inputs: Container[str]) -> tuple[str, ...]:
        """Return the inputs that a request to a model with these `inputs` must have, its main text first."""
        return (*self.needed, *(name for name in self.of_kinds if name in inputs))


TASKS: Mapping[str, Task] = {
    "text-classification": Task(
        "label", options={"top_k": int, "long": str, "stride": int}, tokenizing=TOKENIZING - {"long"}
    ),
    "token-classification": Task(
        "entities",
        of_kinds=("candidate_labels",),
        options={"long": str, "stride": int, "threshold": float, "multi_label": bool, "nested": bool},
        places=Places("offsets", -1, 2),
    ),
    "question-answering": Task(
        "answer",
        ("question", "context"),
        options={"top_k": int, "max_answer_len": int, "doc_stride": int, "handle_impossible_answer": bool},
        nested=True,
        places=Places("spans", -2, 4),
    ),
    "feature-extraction": Task("embedding", options={"dimensions": int, **PROMPTS}),
    "zero-shot-classification": Task(
        "label", required=("candidate_labels",), options={"top_k": int, "multi_label": bool}, nested=True
    ),
    "text-ranking": Task(
        "score", ("query", "text_input"), options={"raw_scores": bool, "apply_softmax": bool, **PROMPTS}
    ),
    "fill-mask": Task("fills", options={"top_k": int, "targets": list}, of_masks=True),
}
