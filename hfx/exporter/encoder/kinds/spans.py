"""GLiNER: entities of the labels that a request names, with their positions in the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hfx import names
from hfx.exporter.checkpoint_files import LABELS_TOKENIZER
from hfx.exporter.config_file import tokenizer_limit
from hfx.exporter.encoder.checkpoint.architectures import TEXT_ENCODERS
from hfx.exporter.encoder.checkpoint.labelled import SPANS_ENCODER, Gliner, check_markers, read_gliner
from hfx.exporter.encoder.kinds.embedder import TEXT_ENCODER as ENCODER_ONLY
from hfx.exporter.encoder.kinds.kind import Answer, Comparison, Config, EncoderKind, Request, Settings, omitted, width
from hfx.exporter.encoder.kinds.tokens import Tokens, entities
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind
from hfx.python_backends.labelled import LABEL, WORDS
from hfx.python_backends.long_texts import CUT
from hfx.python_backends.onnxruntime.config import LABEL_MASK
from hfx.python_backends.tasks.labelled_spans import DEFAULT_THRESHOLD
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch

SAMPLE_LABELS = ("person", "place", "organization", "date", "animal", "product")
LONGEST = 1024  # tokens of a text and its labels, where positions set no limit
# Of the gate's requests. By the lower one, a net that finds nothing differs from a checkpoint that is seldom sure.
THRESHOLDS = (DEFAULT_THRESHOLD, 0.1)
TIE = 0.02  # of a score from a threshold, or from another score
MANY = 32  # entities of a label whose F1 is limited on its own; that of fewer is left to chance
OWN_OPTIONS = (names.THRESHOLD, names.MULTI_LABEL, names.NESTED)


@dataclass(frozen=True, kw_only=True)
class ReadsLabels(EncoderKind):
    """The base class of models that read the labels of a request; their library saves the encoder without a head."""

    plain_name: ClassVar[str] = "models that read the labels of a request"
    why_python: ClassVar[tuple[str, ...]] = ("labels of a request",)

    auto_class: str = "AutoModel"
    headless: bool = True

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return checkpoint.architecture.endswith(cls.architectures)

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        own = {"auto_class": ENCODER_ONLY} if checkpoint.model_type in TEXT_ENCODERS else {}
        return {"omitted": omitted(), **own}

    def longest_input(self, checkpoint: Checkpoint) -> int:
        """Return the most tokens of a text and its labels; models with relative positions alone state no limit."""
        config = checkpoint.config
        is_relative = config.get("relative_attention") and not config.get("position_biased_input", True)
        if is_relative or checkpoint.model_type in TEXT_ENCODERS:
            return LONGEST
        return min(LONGEST, super().longest_input(checkpoint))


@dataclass(frozen=True, kw_only=True)
class Spans(ReadsLabels, Tokens):
    """A model that finds entities of any labels, which a request names."""

    name: ClassVar[Kind] = Kind.SPANS
    architectures: ClassVar[tuple[str, ...]] = ("GLiNER",)
    lacks: ClassVar[frozenset[str]] = frozenset()
    spells_tokens: ClassVar[bool] = False
    own_options: ClassVar[frozenset[str]] = frozenset()
    postprocess_reads: ClassVar[tuple[str, ...]] = (
        names.OFFSETS,
        names.TEXT_INPUT,
        names.CANDIDATE_LABELS,
        *OWN_OPTIONS,
    )
    prefix: ClassVar[str] = SPANS_ENCODER
    pooler_tensors: ClassVar[tuple[str, ...]] = (
        "rnn.",
        "span_rep_layer.",
        "prompt_rep_layer.",
        "scorer.",
        "token_rep_layer.",
    )

    gliner: Gliner = field(default_factory=Gliner)

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        return {**super().fields(checkpoint, options), "gliner": read_gliner(checkpoint)}

    def details(self) -> dict[str, object]:
        return {**super().details(), "aggregation": None}

    @property
    def net_parameters(self) -> Mapping[str, str]:  # type: ignore[override]
        """The parameter that keeps rows with other numbers of labels apart; vectors of labels have a shape."""
        return {} if self.gliner.labels_config else {LABEL_MASK: str(LABEL)}

    @property
    def vectors(self) -> int:  # type: ignore[override]
        """How many numbers the vector of a label has; 0 if labels are read with the text."""
        return self.gliner.hidden if self.gliner.labels_config else 0

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        text, *options = super().inputs
        return (text, TensorSpec(names.CANDIDATE_LABELS, "TYPE_STRING", (-1,), ragged=True), *options)

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        """Return the scores of each word's spans, or of the word itself, for each label."""
        scores = 3 if self.gliner.by_tokens else self.gliner.width
        return (TensorSpec(names.LOGITS, "TYPE_FP32", (-1, -1, scores, -1)),)

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        own = self.gliner
        if not own.labels_config:
            check_markers(checkpoint, tokenizer, {own.markers[0]: own.marker_id})
        longest = min(tokenizer_limit(checkpoint.folder / LABELS_TOKENIZER) or LONGEST, LONGEST)
        reading: Settings = {"words": own.words, "first_tokens": own.first_tokens, "embeds_marker": own.embeds_marker}
        reading |= {"markers": [], "label_tokens": longest} if own.labels_config else {"markers": list(own.markers)}
        return {**super().reader_settings(checkpoint, tokenizer, max_length), "labelled": reading}

    def last_step_settings(self, config: Config) -> Settings:
        return {"answers": "labelled_spans", "by_tokens": self.gliner.by_tokens}

    def load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        """Return the tokenizer as gliner sets it up, with the markers if the checkpoint was saved without them."""
        tokenizer = super().load_tokenizer(checkpoint)
        for side in ("bos", "eos"):  # transformers 5 leaves them out for some tokenizers
            if hasattr(tokenizer, f"add_{side}_token") and getattr(tokenizer, f"{side}_token_id") is not None:
                setattr(tokenizer, f"add_{side}_token", True)
        if self.gliner.adds_markers:
            tokenizer.add_tokens(["[FLERT]", *self.gliner.markers], special_tokens=True)
        return tokenizer

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        from hfx.exporter.encoder.checkpoint.label_heads import load_span_head

        model, _ = super().load_model(checkpoint, tokenizer)
        head = load_span_head(checkpoint.home, self.gliner, width(checkpoint.config))
        if self.gliner.labels_config:
            from hfx.exporter.encoder.label_net import LabelsEncoder

            head.labels = LabelsEncoder.load(checkpoint.home, self.gliner)
        return model, head

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return each text with two to six labels, so that rows with different numbers of labels share a batch."""
        return [
            {names.TEXT_INPUT: text, names.CANDIDATE_LABELS: list(SAMPLE_LABELS[: 2 + i % 5]), names.LONG: CUT}
            for i, text in enumerate(texts)
            if text.strip()
        ]

    def request_options(self, sample: int, config: Config) -> Request:
        """Return options so that nested entities, several labels of a span and low scores are compared, too."""
        threshold = THRESHOLDS[sample % len(THRESHOLDS)]
        return {names.NESTED: sample % 3 == 1, names.MULTI_LABEL: sample % 4 == 2, names.THRESHOLD: threshold}

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the ids that gliner makes of the labels and the words; words that do not fit are left out.

        There are none for a text without tokens.
        """
        marker, separator = self.gliner.markers
        prompt = [each for label in request[names.CANDIDATE_LABELS] for each in (marker, label)] + [separator]
        prompt = [] if self.gliner.labels_config else prompt
        words = [*prompt, *WORDS.findall(request[names.TEXT_INPUT])[: self.gliner.words]]
        encoding = tokenizer(words, is_split_into_words=True, verbose=False)
        ids, owners = list(encoding["input_ids"]), encoding.word_ids()
        if not any(owner is not None and owner >= len(prompt) for owner in owners):
            return [[]]
        end = next(len(owners) - at for at, owner in enumerate(reversed(owners)) if owner is not None)
        if len(ids) > max_length:
            room = max_length - (len(ids) - end)
            cut = owners.index(owners[room])
            ids[cut if owners[room] > len(prompt) else room : end] = []
        return [ids]

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Compare the entities of two answers.

        `same` is the F1 of those of `answer`, and the drift is the largest difference of the scores of an entity that
        both have. Others are ties if their score is close to the threshold, or to that of another entity in their way.
        """
        outcomes = Counter(outcome for _, outcome in _outcomes(reference, answer))
        total = max(outcomes.total(), 1)
        ours, theirs = ({key(each): each["score"] for each in entities(side)} for side in (answer, reference))
        drift = max((abs(ours[each] - theirs[each]) for each in ours.keys() & theirs.keys()), default=0.0)
        return Comparison(1 - (outcomes["tie"] + outcomes["other"]) / total, drift, outcomes["tie"] / total)

    def by_label(self, references: Sequence[Answer], answers: Sequence[Answer]) -> dict[str, float]:
        """Return the F1 of each label's entities over all answers, ties included, of labels with MANY entities."""
        found = Counter(each for pair in zip(references, answers, strict=True) for each in _outcomes(*pair))
        totals = Counter[str]()
        for (label, _), count in found.items():
            totals[label] += count
        return {label: 1 - found[label, "other"] / total for label, total in totals.items() if total >= 2 * MANY}


def key(entity: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return the label and the place of an entity."""
    return entity["entity"], entity["start"], entity["end"]


def _outcomes(reference: Answer, answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the label of each entity of both answers, and whether the other answer has it: same, tie or other."""
    ours, theirs = ({key(each): each for each in entities(side)} for side in (answer, reference))
    for side, other in ((ours, theirs), (theirs, ours)):
        for at, entity in side.items():
            yield at[0], "same" if at in other else "tie" if _is_close(entity, other.values()) else "other"


def _is_close(entity: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the entity's score is close to the threshold, or to that of one of `others` in its way."""
    score = entity["score"]
    rivals = (each["score"] for each in others if each["start"] < entity["end"] and entity["start"] < each["end"])
    return any(abs(score - each) <= TIE for each in (*THRESHOLDS, *rivals))
