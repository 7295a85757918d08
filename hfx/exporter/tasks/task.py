"""What one encoder task is: its tensors, its settings, and how two answers to it are compared.

A task is a value; the pipeline reads it and never asks which task it is. Nothing here touches torch or ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hfx.exporter.source import Checkpoint
from hfx.names import LOGITS, Task
from hfx.python_backends.tasks import TASKS
from hfx.repository.config_pbtxt import TensorSpec

Config = Mapping[str, Any]  # a checkpoint's config.json
Settings = dict[str, Any]
Request = dict[str, Any]  # public input tensor -> value of one row: str, or list of str
OPTIONS = {
    int: ("TYPE_INT32", (1,)),
    bool: ("TYPE_BOOL", (1,)),
    str: ("TYPE_STRING", (1,)),
    list: ("TYPE_STRING", (-1,)),
}
Answer = dict[str, Any]  # public output tensor -> value of one row


@dataclass(frozen=True)
class Comparison:
    """Two answers to one request: whether they say the same, and how far their scores are apart (0 = equal).

    `tie`: they differ, but between answers that the checkpoint itself gives almost equal scores.
    """

    same: bool
    drift: float
    tie: bool = False


@dataclass(frozen=True)
class EncoderTask:
    """One task that an encoder checkpoint can be published for.

    `item_rank` is 1 where a row is one token sequence and 2 where it is several (windows, label pairs). `prepare(model,
    tokenizer)` changes the torch model for all that reads it. `most_rows` bounds the rows of a batch. `token_outputs`
    are what the tokenizer makes beside the ids, `postprocess_reads` the names of the tensors that the last step reads
    beside the net's. A task without `postprocess_settings` ends with the net; one with `tokenizer_settings` spells
    tokens in its last step. `longest` bounds the tokens of one sequence below what the model reads, which must be
    `shortest` at least; `expected_ids(tokenizer, request, max_length)` are the token sequences that transformers' own
    pipeline feeds the checkpoint with, or, where it is `by_library`, sentence-transformers. Options that are `omitted`
    are those of the task that the model does not have. `pair_scores` are those by which texts are ranked (ranking.py):
    of answers to pairs, or to the two texts of each pair in turn.
    """

    task: Task
    auto_class: str
    architectures: tuple[str, ...]
    item_rank: int
    outputs: tuple[TensorSpec, ...]
    net_outputs: Callable[[Config], tuple[TensorSpec, ...]]
    samples: Callable[[Sequence[str]], list[Request]]
    expected_ids: Callable[[Any, Request, int], list[list[int]]]
    compare: Callable[[Answer, Answer], Comparison]
    metric: Callable[[Sequence[Answer], Sequence[str]], float]
    metric_name: str
    pair_scores: Callable[[Sequence[Answer]], list[float]] | None = None
    token_outputs: tuple[TensorSpec, ...] = ()
    postprocess_reads: tuple[str, ...] = ()
    tokenize_settings: Callable[[Config, int], Settings] = lambda config, max_length: {}
    postprocess_settings: Callable[[Config], Settings] | None = None
    tokenizer_settings: Callable[[Any, Checkpoint], Settings] | None = None
    prepare: Callable[[Any, Any], None] = lambda model, tokenizer: None
    most_rows: Callable[[Config], int] | None = None
    headless: bool = False
    by_library: bool = False
    omitted: frozenset[str] = frozenset()
    longest: int | None = None
    shortest: int = 16

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that clients send, of the task's row in the table that runs inside Triton."""
        row = TASKS[self.task]
        return (
            *(TensorSpec(name, "TYPE_STRING", (1,)) for name in row.inputs),
            *(TensorSpec(name, "TYPE_STRING", (-1,), ragged=True) for name in row.required),
            *(
                TensorSpec(name, *OPTIONS[kind], optional=True, ragged=kind is list)
                for name, kind in row.options.items()
                if name not in self.omitted
            ),
        )

    @property
    def metrics(self) -> dict[str, Callable[[Sequence[Answer], Sequence[str]], float]]:
        """The metrics of labelled data by name: of answers against targets."""
        return {self.metric_name: self.metric}

    @property
    def example(self) -> Request:
        """A request that any model of this task answers; used for warm-up and for measuring."""
        return self.samples(["The quick brown fox jumps over the lazy dog."])[0]


def names_labels(config: Config) -> bool:
    """Whether the names of labels are those of id2label; transformers drops them where num_labels is another number."""
    names = config.get("id2label")
    return isinstance(names, dict) and len(names) > 0 and config.get("num_labels") in (None, len(names))


def labels_of(config: Config) -> list[str]:
    """Label names in the order of the logits, as transformers reads them (LABEL_0, LABEL_1 where none are given)."""
    if names_labels(config):
        names = config["id2label"]
        return [str(names[key]) for key in sorted(names, key=int)]
    count = config.get("num_labels")
    return default_labels(2 if count is None else int(count))


def default_labels(count: int) -> list[str]:
    """Those of transformers."""
    return [f"LABEL_{i}" for i in range(count)]


def share_equal(texts: Iterable[str], targets: Sequence[str]) -> float:
    """Share of texts that are the target, but for outer blanks."""
    return fmean(text.strip() == target.strip() for text, target in zip(texts, targets, strict=True))


def logits_of_labels(*dims: int) -> Callable[[Config], tuple[TensorSpec, ...]]:
    """The outputs of a net that gives a logit for each label, of everything that `dims` count."""
    return lambda config: (TensorSpec(LOGITS, "TYPE_FP32", (*dims, len(labels_of(config)))),)
