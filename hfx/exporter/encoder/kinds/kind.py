"""The base class of the kinds of encoders.

A kind says how its checkpoints are read, which tensors and settings a published model has, and how two answers compare.
It is a class, in a file of its own; an instance holds what was read of one checkpoint. The pipeline calls its methods,
and never asks which kind it is. torch is imported only where a model is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, UsageError
from hfx.exporter.config_file import tokenizer_limit
from hfx.exporter.encoder.architectures import DECODERS, MPNET_PADDING, POSITIONS_AFTER_PADDING, TEXT_ENCODERS
from hfx.exporter.encoder.sentence_transformers import Prompts, put_into_lower_case, read_max_length
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
    bool: ("TYPE_BOOL", (1,)),
    str: ("TYPE_STRING", (1,)),
    list: ("TYPE_STRING", (-1,)),
}
Answer = dict[str, Any]  # public output tensor -> value of one row
# Options that only some kinds have -> the beginning of what is said where another kind is exported.
OPTIONS_OF_KINDS = {
    "token_vectors": "--token-vectors is for feature-extraction, not for",
    "dimensions": "--dimensions is for feature-extraction with one vector of a text, not for",
    "aggregation": "--aggregation is for token-classification, not for",
}
LONGEST = 8192  # tokens of a sequence, whatever a model reads: scores of 32,768 tokens take 4 GiB a head
FALLBACK_LENGTH = 512


@dataclass(frozen=True)
class Comparison:
    """Two answers to one request: whether they say the same, and how far their scores are apart (0 = equal).

    `tie`: they differ, but between answers that the checkpoint itself gives almost equal scores.
    """

    same: bool
    drift: float
    tie: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderKind(ABC):
    """One kind of encoder. An instance without arguments has what all models of the kind have.

    `item_rank` is 1 where a row is one token sequence and 2 where it is several (windows, label pairs). `token_outputs`
    are what the tokenizer makes beside the ids. One that `spells_tokens` has a tokenizer in its last step. Where it is
    `by_library`, texts are read as by sentence-transformers. One that `ranks` has scores by which texts are ranked.
    `longest` bounds the tokens of one sequence below what the model reads, which must be `shortest` at least. The
    model is loaded by `auto_class` (a transformers Auto class); a `headless` one may leave tensors of a head unused.
    Options that are `omitted` are those of the task that the model does not have. Of OPTIONS_OF_KINDS it has its
    `own_options`; what refuses the others calls it by `plain_name`, empty for that of its task.
    """

    kind: ClassVar[Kind]
    task: ClassVar[Task]
    architectures: ClassVar[tuple[str, ...]] = ()
    item_rank: ClassVar[int] = 1
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = ()
    spells_tokens: ClassVar[bool] = False
    by_library: ClassVar[bool] = False
    ranks: ClassVar[bool] = False
    longest: ClassVar[int | None] = None
    shortest: ClassVar[int] = 16
    metric_name: ClassVar[str] = "accuracy"
    own_options: ClassVar[frozenset[str]] = frozenset()
    plain_name: ClassVar[str] = ""

    auto_class: str
    headless: bool = False
    omitted: frozenset[str] = frozenset()
    prompts: Prompts | None = None

    # A checkpoint

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        """Whether a checkpoint that is exported for the task is of this kind. KINDS asks in order."""
        return True

    @classmethod
    def read(cls, checkpoint: Checkpoint, options: ExportOptions) -> Self:
        """The kind with what the checkpoint's small files say.

        Raises UsageError for options that it does not have, CheckpointUnsupported and CheckpointCorrupt.
        """
        cls.refuse_options(options)
        made = cls(**cls.fields(checkpoint, options))
        made.last_step_settings(checkpoint.config)  # refuses a config that lacks what the kind needs, before any work
        return made

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        """The values of an instance, as `read` finds them. Raises CheckpointUnsupported and CheckpointCorrupt."""
        return {"omitted": omitted()}

    @classmethod
    def refuse_options(cls, options: ExportOptions) -> None:
        """Raise UsageError for an option of other kinds."""
        for field, what in OPTIONS_OF_KINDS.items():
            if getattr(options, field) and field not in cls.own_options:
                raise UsageError(f"{what} {cls.plain_name or cls.task}.", "Leave it out.")

    def longest_input(self, checkpoint: Checkpoint) -> int:
        """Tokens, special ones included, that the checkpoint reads at most: the least of what its files say."""
        trained = read_max_length(checkpoint.folder) if self.by_library else None  # it replaces the tokenizer's own
        stated = trained or tokenizer_limit(checkpoint.home.folder)
        return self.longest_of_model(checkpoint, *(() if stated is None else (stated,)))

    def longest_of_model(self, checkpoint: Checkpoint, *stated: int) -> int:
        """The same without the tokenizer's files, or by what these have `stated`."""
        config, limits = checkpoint.config, [*stated]
        positions = config.get("max_position_embeddings")
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
        """The tokens of the longest sequence that is served. Raises UsageError and CheckpointUnsupported."""
        return checked_max_length(requested, self.longest_input(checkpoint), self.shortest)

    @property
    def own_widths(self) -> frozenset[int]:
        """Widths that sequences of this model have beside the usual ones."""
        return frozenset()

    def most_rows(self, config: Config, max_length: int) -> int | None:
        """A bound of the rows of a batch; None where memory asks for none."""
        return None

    @classmethod
    def published(cls, labels: Sequence[str], has_prompts: bool) -> Self:
        """The kind of a published model, whose last step has these `labels`; without its checkpoint."""
        return cls(omitted=frozenset(() if has_prompts else PROMPTS))  # type: ignore[call-arg]

    def notes(self, checkpoint: Checkpoint, options: ExportOptions) -> tuple[str, ...]:
        """What the user should know before any work."""
        return ()

    def details(self) -> dict[str, object]:
        """What was decided, in words."""
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
    @abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that clients get."""

    @abstractmethod
    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        """What the net gives for a checkpoint of this config.json."""

    # Steps

    @property
    def has_last_step(self) -> bool:
        """Whether a step makes the answer of what the net gives; if not, the net does."""
        return True

    @property
    @abstractmethod
    def postprocess_reads(self) -> tuple[str, ...]:
        """The tensors that the last step reads beside the net's."""

    @property
    def why_python(self) -> tuple[str, ...]:
        """What of the model native/backend does not do; empty where it can serve it."""
        return ()

    @property
    def takes_empty(self) -> bool:
        """Whether a text without tokens has an answer."""
        return False

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        """What the tokenizing step's settings.json has of this kind."""
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
        """What the last step's settings.json has of this kind. Raises CheckpointUnsupported."""
        return {}

    def tokenizer_settings(self, tokenizer: Any, checkpoint: Checkpoint) -> Settings:
        """What the last step's settings.json says of the tokenizer, where the step `spells_tokens`."""
        return {}

    # The checkpoint's model

    def load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        """The tokenizer as transformers, or the library, reads it. Raises CheckpointCorrupt, CheckpointUnsafe."""
        tokenizer = load_tokenizer(checkpoint.home)
        if self.by_library:
            put_into_lower_case(tokenizer, checkpoint.folder)
        return tokenizer

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        """The torch model, and what makes the net's output of its hidden states (pooling.py), if it has such."""
        return load_model(checkpoint.home, self.auto_class, self.headless), None

    # Requests and answers

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Requests for the gate, of these texts."""
        return [{names.TEXT_INPUT: text} for text in texts]

    def request_options(self, sample: int, config: Config) -> Request:
        """Options that the gate's request of this number has: each prompt in turn, and half of the vector."""
        prompts = (None, *self.prompts.texts) if self.prompts else (None,)
        prompt = prompts[sample % len(prompts)]
        return {} if prompt is None else {PROMPT_NAME: prompt}

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """The token sequences that transformers' own pipeline (or sentence-transformers) feeds the checkpoint with."""
        return [tokenizer(request[names.TEXT_INPUT], truncation=True, max_length=max_length)["input_ids"]]

    @abstractmethod
    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """How far an answer is from the checkpoint's own."""

    @abstractmethod
    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        """How good answers are, by `metric_name`."""

    def pair_scores(self, answers: Sequence[Answer]) -> list[float]:
        """Scores by which texts are ranked: of answers to pairs, or to the two texts of each pair in turn."""
        raise TypeError(f"answers of the kind {self.kind} rank nothing")

    @property
    def metrics(self) -> dict[str, Callable[[Sequence[Answer], Sequence[str]], float]]:
        """The metrics of labelled data by name: of answers against targets."""
        return {self.metric_name: self.metric}

    @property
    def example(self) -> Request:
        """A request that any model of this task answers; used for warm-up and for measuring."""
        return self.samples(["The quick brown fox jumps over the lazy dog."])[0]


def omitted(*has: str) -> frozenset[str]:
    """The options that not every model of a task has, but for those that this one `has`."""
    return frozenset({*PROMPTS, DIMENSIONS, APPLY_SOFTMAX} - {*has})


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
    """The names that transformers gives labels without names."""
    return [f"LABEL_{i}" for i in range(count)]


def share_equal(texts: Iterable[str], targets: Sequence[str]) -> float:
    """Share of texts that are the target, but for outer blanks."""
    return fmean(text.strip() == target.strip() for text, target in zip(texts, targets, strict=True))


def logits_of_labels(config: Config, *dims: int) -> tuple[TensorSpec, ...]:
    """The outputs of a net that gives a logit for each label, of everything that `dims` count."""
    return (TensorSpec(LOGITS, "TYPE_FP32", (*dims, len(labels_of(config)))),)


def width(config: Config) -> int:
    """Length of a token's embedding."""
    for field in ("hidden_size", "dim", "d_model", "emb_dim"):
        if isinstance(config.get(field), int):
            return int(config[field])
    raise CheckpointCorrupt("config.json has no hidden_size (nor dim, d_model, emb_dim).", "Save the model again.")


def vocabulary(config: Config) -> int:
    """The number of tokens. Raises CheckpointUnsupported for a config without it."""
    size = config.get("vocab_size")
    if type(size) is not int or size < 1:
        raise CheckpointUnsupported(f"vocab_size in config.json is {size!r}.", "It must be the number of tokens.")
    return size
