"""The base class of the kinds of encoders.

A kind says how its checkpoints are read, which tensors and settings a published model has, and how two answers compare.
Each kind is a class in a file of its own; an instance holds what was read from one checkpoint. The pipeline calls the
methods of a kind, and has no branches on the kind itself. torch is imported only where a model is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hfx import names
from hfx.errors import CheckpointCorrupt, UsageError
from hfx.exporter.config_file import tokenizer_limit
from hfx.exporter.encoder.checkpoint.architectures import (
    DECODERS,
    MPNET_PADDING,
    POSITIONS_AFTER_PADDING,
    TEXT_ENCODERS,
)
from hfx.exporter.encoder.checkpoint.sentence_transformers import Prompts, put_into_lower_case, read_max_length
from hfx.exporter.load import load_model
from hfx.exporter.options import ExportOptions, checked_max_length
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from hfx.names import APPLY_SOFTMAX, DIMENSIONS, LOGITS, PROMPT_NAME, Kind, Task
from hfx.python_backends.tasks import PROMPTS, TASKS
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch

Config = Mapping[str, Any]  # a checkpoint's config.json
Settings = dict[str, Any]
Request = dict[str, Any]  # public input tensor -> value of one row: str, or list of str
OPTIONS = {
    int: ("TYPE_INT32", (1,)),
    float: ("TYPE_FP32", (1,)),
    bool: ("TYPE_BOOL", (1,)),
    str: ("TYPE_STRING", (1,)),
    list: ("TYPE_STRING", (-1,)),
}
Answer = dict[str, Any]  # public output tensor -> value of one row
# Options that only some kinds have -> the beginning of the error for the other kinds.
OPTIONS_OF_KINDS = {
    "token_vectors": "--token-vectors is for feature-extraction, not for",
    "dimensions": "--dimensions is for feature-extraction with one vector of a text, not for",
    "aggregation": "--aggregation is for token-classification, not for",
    "calibrate": "--calibrate is for text-classification, not for",
    "threshold": "--threshold is for text-classification, not for",
    "safe_label": "--safe-label is for text-classification, not for",
    "answer": "--answer is for text-classification by a language model, not for",
    "system": "--system is for text-classification by a language model, not for",
}
LONGEST = 8192  # tokens of a sequence, even if a model reads more: the scores of 32,768 tokens take 4 GiB for each head
FALLBACK_LENGTH = 512


@dataclass(frozen=True)
class Comparison:
    """The comparison of two answers to one request.

    `same` says whether they are equal, and `drift` how far their scores are apart (0: equal). It is a `tie` if the
    answers differ, but the checkpoint itself gives them almost equal scores. Of answers that are lists, `same` is the
    share of equal parts, and `tie` the share of the others if they are ties.
    """

    same: float
    drift: float
    tie: float = False

    @property
    def differs(self) -> bool:
        """Whether a part differs that is no tie; sums of shares may be off in their last bit."""
        return self.same + self.tie < 1 - 1e-9


@dataclass(frozen=True, kw_only=True)
class EncoderKind(ABC):
    """One kind of encoder. An instance without arguments has what all models of the kind have in common.

    `item_rank` is 1 if a row is one token sequence, and 2 if a row is several (windows, label pairs). `token_outputs`
    are the tensors that the tokenizer makes beside the ids. With `spells_tokens`, the last step has a tokenizer. With
    `by_library`, texts are read as sentence-transformers read them. With `ranks`, texts can be ranked by the scores.
    `longest` is a limit on the tokens of a sequence in addition to the model's own limits. The resulting limit must be
    at least `shortest`. The model is loaded by `auto_class` (a transformers Auto class) from the tensors whose names
    begin with `prefix`; a `headless` model may leave tensors of a head unused. `omitted` are the options of the task
    that the model does not have; no model of the kind has those that it `lacks`. `own_options` are the options in
    OPTIONS_OF_KINDS that the kind supports. Errors about its other options call the kind `plain_name`, or name its
    task if `plain_name` is empty.
    """

    name: ClassVar[Kind]
    task: ClassVar[Task]
    architectures: ClassVar[tuple[str, ...]] = ()
    item_rank: ClassVar[int] = 1
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = ()
    lacks: ClassVar[frozenset[str]] = frozenset()
    spells_tokens: ClassVar[bool] = False
    by_library: ClassVar[bool] = False
    ranks: ClassVar[bool] = False
    longest: ClassVar[int | None] = None
    shortest: ClassVar[int] = 16
    metric_name: ClassVar[str] = "accuracy"
    own_options: ClassVar[frozenset[str]] = frozenset()
    plain_name: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    net_parameters: ClassVar[Mapping[str, str]] = {}
    vectors: ClassVar[int] = 0
    auto_class: str
    headless: bool = False
    omitted: frozenset[str] = frozenset()
    prompts: Prompts | None = None

    # A checkpoint

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        """Return whether a checkpoint that is exported for the task is of this kind. KINDS are tried in order."""
        return True

    @classmethod
    def read(cls, checkpoint: Checkpoint, options: ExportOptions) -> Self:
        """Return an instance with what the checkpoint's small files say.

        Raises UsageError for options that the kind does not have, CheckpointUnsupported and CheckpointCorrupt.
        """
        cls.refuse_options(options)
        made = cls(**cls.fields(checkpoint, options))
        made.last_step_settings(checkpoint.config)  # refuses a config that lacks what the kind needs, before any work
        return made

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        """Return the fields of the instance that `read` makes. Raises CheckpointUnsupported and CheckpointCorrupt."""
        return {"omitted": omitted()}

    @classmethod
    def refuse_options(cls, options: ExportOptions) -> None:
        """Raise UsageError if `options` has an option that only other kinds have."""
        for field, what in OPTIONS_OF_KINDS.items():
            if getattr(options, field) and field not in cls.own_options:
                raise UsageError(f"{what} {cls.plain_name or cls.task}.", "Leave it out.")

    def longest_input(self, checkpoint: Checkpoint) -> int:
        """Return the most tokens that the checkpoint reads, special ones included: the least limit in its files."""
        trained = read_max_length(checkpoint.folder) if self.by_library else None  # replaces the tokenizer's limit
        stated = trained or tokenizer_limit(checkpoint.home.folder)
        return self.longest_of_model(checkpoint, *(() if stated is None else (stated,)))

    def longest_of_model(self, checkpoint: Checkpoint, *stated: int) -> int:
        """Return the most tokens that the checkpoint reads.

        This is the least of the limits in the model's own files, of the kind's own limits, and of those that other
        files have `stated`.
        """
        config, limits = checkpoint.config, [*stated]
        positions = config.get("max_position_embeddings")
        if checkpoint.model_type in DECODERS:
            limits += [size for name in ("n_positions", "max_seq_len") if isinstance(size := config.get(name), int)]
        if isinstance(positions, int) and positions > 0:
            padding = MPNET_PADDING if checkpoint.model_type == "mpnet" else config.get("pad_token_id")
            behind = checkpoint.model_type in POSITIONS_AFTER_PADDING
            offset = (padding if isinstance(padding, int) else 1) + 1 if behind else 0
            limits.append(positions - offset)
        if self.longest:
            limits.append(self.longest)
        if checkpoint.model_type in DECODERS | TEXT_ENCODERS:
            limits.append(LONGEST)
        return min(limits, default=FALLBACK_LENGTH)

    def max_length(self, checkpoint: Checkpoint, requested: int | None) -> int:
        """Return the tokens of the longest sequence that is served. Raises UsageError and CheckpointUnsupported."""
        return checked_max_length(requested, self.longest_input(checkpoint), self.shortest)

    @property
    def own_widths(self) -> frozenset[int]:
        """Widths of this model's sequences in addition to the usual widths."""
        return frozenset()

    def most_rows(self, config: Config, max_length: int) -> int | None:
        """Return the most rows that a batch may have; None if memory needs no such bound."""
        return None

    @classmethod
    def published(cls, labels: Sequence[str], has_prompts: bool) -> Self:
        """Return an instance for a published model whose last step has these `labels`, without its checkpoint."""
        return cls(omitted=frozenset(() if has_prompts else PROMPTS))  # type: ignore[call-arg]

    def notes(self, checkpoint: Checkpoint, options: ExportOptions) -> tuple[str, ...]:
        """Return what the user should know before the export begins."""
        return ()

    def details(self) -> dict[str, object]:
        """Return the decisions about the export, in words."""
        return {
            "aggregation": None,
            "activation": None,
            "pooling": None,
            "prompts": list(self.prompts.texts) if self.prompts else None,
            "template": None,
        }

    # Tensors

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that clients send, from the task's row in TASKS, the table that is used inside Triton."""
        row = TASKS[self.task]
        return (
            *(TensorSpec(name, "TYPE_STRING", (1,)) for name in row.inputs),
            *(TensorSpec(name, "TYPE_STRING", (-1,), ragged=True) for name in row.required),
            *(
                TensorSpec(name, *OPTIONS[kind], optional=True, ragged=kind is list)
                for name, kind in row.options.items()
                if name not in self.omitted | self.lacks
            ),
        )

    @property
    @abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that clients receive."""

    @abstractmethod
    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        """Return the outputs of the net for a checkpoint with this config.json."""

    # Steps

    @property
    def has_last_step(self) -> bool:
        """Whether a last step makes the answer from the net's outputs; if not, the net's outputs are the answer."""
        return True

    @property
    @abstractmethod
    def postprocess_reads(self) -> tuple[str, ...]:
        """The tensors that the last step reads in addition to the net's outputs."""

    @property
    def why_python(self) -> tuple[str, ...]:
        """The features that the model needs and native/backend lacks; empty if native/backend can serve the model."""
        return ()

    @property
    def takes_empty(self) -> bool:
        """Whether a text without tokens has an answer."""
        return False

    @property
    def pooler_tensors(self) -> tuple[str, ...]:
        """The beginnings of the names of tensors that the pooler reads from the model's own files."""
        return ()

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        """Return what this kind adds to settings.json of the tokenizing step."""
        if self.prompts is None:
            return {}
        return {
            "prompts": dict(self.prompts.texts),
            "default_prompt": self.prompts.default,
            "pools_prompt": self.pools_prompt,
        }

    @property
    def pools_prompt(self) -> bool:
        """Whether a prompt's tokens are pooled with the others."""
        return True

    def last_step_settings(self, config: Config) -> Settings:
        """Return what this kind adds to settings.json of the last step. Raises CheckpointUnsupported."""
        return {}

    def tokenizer_settings(self, tokenizer: Any, checkpoint: Checkpoint) -> Settings:
        """Return what settings.json of the last step says about the tokenizer, if the step `spells_tokens`."""
        return {}

    # The checkpoint's model

    def load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        """Return the tokenizer as transformers or sentence-transformers set it up.

        Raises CheckpointCorrupt and CheckpointUnsafe.
        """
        tokenizer = load_tokenizer(checkpoint.home)
        if self.by_library:
            put_into_lower_case(tokenizer, checkpoint)
        return tokenizer

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        """Return the torch model, and its pooler (pooling.py) if the net's output is made of hidden states."""
        return load_model(checkpoint.home, self.auto_class, self.headless, self.prefix), None

    # Requests and answers

    def read_as(self, text: str) -> list[str]:
        """Return `text` as the model reads it: alone, and behind each of its prompts."""
        return [text, *(prompt + text for prompt in (self.prompts.texts.values() if self.prompts else ()))]

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return requests for the gate, made of `texts`."""
        return [{names.TEXT_INPUT: text} for text in texts]

    def request_options(self, sample: int, config: Config) -> Request:
        """Return the options of the gate's request number `sample`.

        The requests have no prompt and each of the prompts in turn. Kinds may add options of their own.
        """
        prompts = (None, *self.prompts.texts) if self.prompts else (None,)
        prompt = prompts[sample % len(prompts)]
        return {} if prompt is None else {PROMPT_NAME: prompt}

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the token sequences that transformers' pipeline (or sentence-transformers) gives the checkpoint."""
        return [tokenizer(request[names.TEXT_INPUT], truncation=True, max_length=max_length)["input_ids"]]

    @abstractmethod
    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Compare an answer with the checkpoint's own answer, `reference`."""

    @abstractmethod
    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        """Return the metric `metric_name` of `answers`."""

    def by_label(self, references: Sequence[Answer], answers: Sequence[Answer]) -> dict[str, float]:
        """Return the share of each label's results that are equal, if answers are lists of labelled results."""
        return {}

    def same_decision(self, reference: Answer, answer: Answer) -> bool:
        """Return whether a caller would decide alike by an answer and by the checkpoint's own answer, `reference`."""
        return self.compare(reference, answer).same == 1

    def calibration_error(self, answers: Sequence[Answer], targets: Sequence[str]) -> float | None:
        """Return how far the scores are from the shares of right answers; None if scores are no probabilities."""
        return None

    def pair_scores(self, answers: Sequence[Answer]) -> list[float]:
        """Return the scores by which texts are ranked, one for each pair.

        `answers` has one answer for each pair, or two: one for each text of the pair, one after the other.
        """
        raise TypeError(f"answers of the kind {self.name} rank nothing")

    @property
    def metrics(self) -> dict[str, Callable[[Sequence[Answer], Sequence[str]], float]]:
        """The metrics on labelled data, by name. Each compares answers with targets."""
        return {self.metric_name: self.metric}

    @property
    def example(self) -> Request:
        """A request that any model of this task can answer; it is used for warm-up and for measuring."""
        return self.samples(["The quick brown fox jumps over the lazy dog."])[0]


def omitted(*has: str) -> frozenset[str]:
    """Return the options that not every model of a task has, except those in `has`."""
    return frozenset({*PROMPTS, DIMENSIONS, APPLY_SOFTMAX} - {*has})


def names_labels(config: Config) -> bool:
    """Return whether labels have the names in id2label; transformers drops these if num_labels is another number."""
    names = config.get("id2label")
    return isinstance(names, dict) and len(names) > 0 and config.get("num_labels") in (None, len(names))


def labels_of(config: Config) -> list[str]:
    """Return label names in the order of the logits, as transformers does (LABEL_0, LABEL_1 if none are given)."""
    if names_labels(config):
        names = config["id2label"]
        return [str(names[key]) for key in sorted(names, key=int)]
    count = config.get("num_labels")
    return default_labels(2 if count is None else int(count))


def default_labels(count: int) -> list[str]:
    """Return the names that transformers gives to labels without names."""
    return [f"LABEL_{i}" for i in range(count)]


def logits_of_labels(config: Config, *dims: int) -> tuple[TensorSpec, ...]:
    """Return the output of a net that gives one logit for each label, with the leading `dims`."""
    return (TensorSpec(LOGITS, "TYPE_FP32", (*dims, len(labels_of(config)))),)


def width(config: Config) -> int:
    """Return the length of a token's embedding. Raises CheckpointCorrupt for a config without it."""
    for field in ("word_embed_proj_dim", "hidden_size", "dim", "d_model", "emb_dim", "n_embd"):
        if isinstance(config.get(field), int):
            return int(config[field])
    raise CheckpointCorrupt(
        "config.json has no hidden_size (nor dim, d_model, emb_dim, n_embd).", "Save the model again."
    )
