"""A language model that classifies: a label's score is that of the first token of its answer to a chat template.

The scores are the softmax of the logits of these tokens alone. The tokens before the text are the same for all
requests: the graph has their keys and values as constants, so a request costs only the tokens from the text on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hfx import names
from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.encoder.checkpoint.pair_templates import MessageTemplate, read_message_template
from hfx.exporter.encoder.checkpoint.pooling import AnswerLogits, make_pooler
from hfx.exporter.encoder.graph.constant_prefix import behind_prefix
from hfx.exporter.encoder.kinds.classifier import Classifier
from hfx.exporter.encoder.kinds.cross_encoder import CAUSAL_MODELS, templated_ids
from hfx.exporter.encoder.kinds.judge import CAP, CAUSAL_MODEL
from hfx.exporter.encoder.kinds.kind import Config, Request, Settings, omitted
from hfx.exporter.load import head_rows, load_model
from hfx.exporter.options import SHORTEST, ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import LOGITS, TEXT_INPUT, Kind
from hfx.python_backends.templates import rendered
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch

MOST_ANSWERS = 64
# Texts after each of which a template's own tokens before the text are compared. A tokenizer may join the last of them
# with the text; with MARGIN tokens fewer, no text of any of the tests changes them.
BEGINNINGS = ("a", "1", " a", "\n\na", "\t", "'s", ".", "é", "</a>", "a" * 40)
MARGIN = 4
SAME_LOGIT = 1e-3  # as a share of the largest logit: float32 sums in another order
OMITTED = omitted() | {names.LONG, names.STRIDE}  # no windows
NO_TEMPLATE = MessageTemplate(("", TEXT_INPUT, ""))
ADVICE = "Give at least two answers, each as the model would begin it: --answer yes=Yes --answer no=No."


@dataclass(frozen=True)
class Reading:
    """How one tokenizer reads the template.

    `parts` are the template with the tokens that all answers begin with behind it. `prefix` are the ids before the
    text that no text changes, and `answers` the ids of the first tokens that tell the answers apart.
    """

    parts: tuple[str, ...]
    prefix: tuple[int, ...]
    answers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AnswerClassifier(Classifier):
    """Labels of a text by a language model: `answers` are pairs of a label and the text of its answer."""

    name: ClassVar[Kind] = Kind.ANSWER_CLASSIFIER
    plain_name: ClassVar[str] = "language models that classify"
    own_options: ClassVar[frozenset[str]] = Classifier.own_options | {"answer", "system"}
    why_python: ClassVar[tuple[str, ...]] = ("a template of texts",)
    takes_empty: ClassVar[bool] = True
    item_rank: ClassVar[int] = 1  # no windows
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = ()
    postprocess_reads: ClassVar[tuple[str, ...]] = (names.TOP_K,)

    auto_class: str = CAUSAL_MODEL
    answers: tuple[tuple[str, str], ...] = ()
    template: MessageTemplate = NO_TEMPLATE

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return checkpoint.architecture.endswith(CAUSAL_MODELS)

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        return {
            **super().fields(checkpoint, options),
            "omitted": OMITTED,
            "answers": _answers(options.answer),
            "template": read_message_template(checkpoint, options.system),
        }

    @classmethod
    def published(cls, labels: Sequence[str], has_prompts: bool) -> Self:
        return cls(answers=tuple((label, label) for label in labels), omitted=OMITTED)

    def notes(self, checkpoint: Checkpoint, options: ExportOptions) -> tuple[str, ...]:
        return ()

    def details(self) -> dict[str, object]:
        return {**super().details(), "activation": "softmax", "template": self.template.parts}

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        return (TensorSpec(LOGITS, "TYPE_FP32", (len(self.answers),)),)

    def last_step_settings(self, config: Config) -> Settings:
        return {"labels": [label for label, _ in self.answers], "activation": "softmax", "default_top_k": 1}

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        reading = _reading(self.template, self.answers, tokenizer)
        [shortest] = templated_ids(reading.parts, None, tokenizer, {TEXT_INPUT: "a"}, 1 << 30)
        if len(shortest) + SHORTEST > max_length:
            raise CheckpointUnsupported(
                f"The template takes {len(shortest)} of {max_length} tokens, and leaves no room for a text.",
                "Pass a larger --max-length, or a shorter --system.",
            )
        return {"template": reading.parts, "prefix": reading.prefix, "strips": self.template.strips}

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        """Return the model without its head, behind the prefix, and a pooler with the rows of the head of the answers.

        Raises CheckpointUnsupported if the model's own logits are not the products of these rows.
        """
        self.reader_settings(
            checkpoint, tokenizer, self.longest_input(checkpoint)
        )  # refuses a template that is too long
        reading = _reading(self.template, self.answers, tokenizer)
        model: Any = load_model(checkpoint.home, self.auto_class, self.headless)
        rows = head_rows(model, tokenizer, reading.answers)
        pooling = AnswerLogits(answers=reading.answers, cap=getattr(model.config, CAP, None))
        pooler = make_pooler(pooling, checkpoint, rows)
        _check_logits(model, pooler, reading)
        return behind_prefix(model.base_model, reading.prefix), pooler

    def read_as(self, text: str) -> list[str]:
        return [rendered(self.template.parts, {TEXT_INPUT: self.template.stripped(text)})]

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        reading = _reading(self.template, self.answers, tokenizer)
        text = self.template.stripped(request[TEXT_INPUT])
        [ids] = templated_ids(reading.parts, None, tokenizer, {TEXT_INPUT: text}, max_length)
        return [ids[len(reading.prefix) :]]


def _answers(stated: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the labels and answers in `stated`, each LABEL=TEXT or a text that is its own label. Raises UsageError."""
    pairs = [(label.strip(), text) if equals else (label.strip(), label) for label, equals, text in
             (each.partition("=") for each in stated)]  # fmt: skip
    labels = [label for label, _ in pairs]
    if not 2 <= len({*labels}) == len(pairs) <= MOST_ANSWERS or not all(label and text for label, text in pairs):
        raise UsageError(f"--answer names {len({*labels} - {''})} labels in {len(pairs)} answers.", ADVICE)
    return tuple(pairs)


@lru_cache(maxsize=1)
def _reading(template: MessageTemplate, answers: tuple[tuple[str, str], ...], tokenizer: Any) -> Reading:
    """Tokenize the template with each answer. Raises CheckpointUnsupported if the answers can't be told apart."""

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    prompt = rendered(template.parts, {TEXT_INPUT: "a"})
    before, spelled = ids(prompt), [ids(prompt + text) for _, text in answers]
    same = _beginning(spelled)
    shared = tokenizer.decode(same[len(before) :])
    first = tuple(each[len(same)] for each in spelled if len(each) > len(same))
    if same[: len(before)] != before or ids(prompt + shared) != same:
        raise CheckpointUnsupported(
            "The tokenizer joins the beginning of an --answer with the end of the template.",
            "Give the answers as the model would write them behind the template, with their blanks and line breaks.",
        )
    if len({*first}) < len(answers):
        raise CheckpointUnsupported(
            f"Two answers begin with the same token ({', '.join(text for _, text in answers)[:200]}).", ADVICE
        )
    parts = (*template.parts[:-1], template.parts[-1] + shared)
    fixed = _beginning([ids(rendered(parts, {TEXT_INPUT: text})) for text in BEGINNINGS])
    return Reading(parts, tuple(fixed[:-MARGIN]), first)


def _beginning(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest list of ids that all rows begin with."""
    columns = zip(*rows, strict=False)
    return [first for first, *others in takewhile(lambda column: len({*column}) == 1, columns)]


def _check_logits(model: Any, pooler: torch.nn.Module, reading: Reading) -> None:
    """Compare the pooler's numbers with the logits that the whole model gives, biases, scales and caps included."""
    import torch

    ids = torch.tensor([[*reading.prefix, *reading.answers]])
    with torch.inference_mode():
        expected = model(ids).logits[0, -1, [*reading.answers]]
        hidden = model.base_model(ids).last_hidden_state
        found = pooler(hidden, torch.ones_like(ids))[0]
    if not torch.allclose(found, expected, rtol=0, atol=SAME_LOGIT * max(1.0, float(expected.abs().max()))):
        raise CheckpointUnsupported(
            f"The logits of {type(model).__name__} are more than products with the rows of its head.",
            "Export a sequence classifier, or another language model.",
        )
