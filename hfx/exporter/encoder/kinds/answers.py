"""Extractive question answering: the best span of a context, read in overlapping windows where it is long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from hfx import names
from hfx.exporter.encoder.kinds.kind import Answer, Comparison, Config, EncoderKind, Request, Settings
from hfx.exporter.source import Checkpoint
from hfx.names import Kind, Task
from hfx.repository.config_pbtxt import TensorSpec

# transformers' QuestionAnsweringPipeline: its window, the overlap of two windows, and the longest answer in words.
WINDOW = 384
OVERLAP = 128
MAX_ANSWER_LENGTH = 15
SHORTEST_WINDOW = 64  # half of a window is overlap: a shorter window has no room beside an ordinary question
SAMPLE_QUESTIONS = (
    "Who is it about?",
    "Where does it happen?",
    "What is said?",
    "When?",
    "How many are there, and why?",
)
# The net's outputs: one number for each token of each window.
LOGITS = tuple(TensorSpec(name, "TYPE_FP32", (-1, -1)) for name in (names.START_LOGITS, names.END_LOGITS))
LONG_CONTEXT_TEXTS = 12  # this many texts are joined to one context, so that windows are verified too


@dataclass(frozen=True, kw_only=True)
class Answers(EncoderKind):
    """The answer to a question: a span of its context."""

    name: ClassVar[Kind] = Kind.ANSWERS
    task: ClassVar[Task] = Task.QUESTION_ANSWERING
    architectures: ClassVar[tuple[str, ...]] = ("ForQuestionAnswering",)
    item_rank: ClassVar[int] = 2
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = (TensorSpec(names.SPANS, "TYPE_INT32", (-1, -1, 4)),)
    longest: ClassVar[int | None] = WINDOW
    shortest: ClassVar[int] = SHORTEST_WINDOW
    metric_name: ClassVar[str] = "exact_match"
    outputs: ClassVar[tuple[TensorSpec, ...]] = (
        TensorSpec(names.ANSWER, "TYPE_STRING", (1,)),
        TensorSpec(names.SCORE, "TYPE_FP32", (1,)),
        TensorSpec(names.START, "TYPE_INT32", (1,)),
        TensorSpec(names.END, "TYPE_INT32", (1,)),
        TensorSpec(names.ANSWERS, "TYPE_STRING", (1,)),
    )
    postprocess_reads: ClassVar[tuple[str, ...]] = (
        names.CONTEXT,
        names.SPANS,
        names.TOP_K,
        names.MAX_ANSWER_LEN,
        names.HANDLE_IMPOSSIBLE_ANSWER,
    )
    why_python: ClassVar[tuple[str, ...]] = (str(task),)

    auto_class: str = "AutoModelForQuestionAnswering"

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        return LOGITS

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        return {"doc_stride": stride(max_length)}

    def last_step_settings(self, config: Config) -> Settings:
        return {"max_answer_length": MAX_ANSWER_LENGTH}

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return a question about each text; every tenth context is long, made of many texts."""
        usable = [text for text in texts if text.strip()]
        requests = []
        for i, text in enumerate(usable):
            context = " ".join(usable[i : i + LONG_CONTEXT_TEXTS]) if i % 10 == 0 else text
            requests.append({names.QUESTION: SAMPLE_QUESTIONS[i % len(SAMPLE_QUESTIONS)], names.CONTEXT: context})
        return requests

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the windows over the context, each with the question (last, if the tokenizer pads on the left)."""
        first, second = request[names.QUESTION], request[names.CONTEXT]
        if tokenizer.padding_side == "left":
            first, second = second, first
        ids: list[list[int]] = tokenizer(
            first,
            second,
            truncation="only_second" if tokenizer.padding_side == "right" else "only_first",
            max_length=max_length,
            stride=stride(max_length),
            return_overflowing_tokens=True,
        )["input_ids"]
        return ids

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Two answers are the same if they are the same characters of the context.

        The drift is the scores' difference.
        """
        same = (reference[names.START], reference[names.END]) == (answer[names.START], answer[names.END])
        return Comparison(same, abs(float(reference[names.SCORE]) - float(answer[names.SCORE])))

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        return share_equal((answer[names.ANSWER] for answer in answers), targets)


def stride(max_length: int) -> int:
    """Return the overlap that the pipeline chooses for windows of `max_length` tokens."""
    return min(max_length // 2, OVERLAP)


def share_equal(texts: Iterable[str], targets: Sequence[str]) -> float:
    """Return the share of texts that equal their target, ignoring leading and trailing white space."""
    return fmean(text.strip() == target.strip() for text, target in zip(texts, targets, strict=True))
