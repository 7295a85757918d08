"""Entities of the labels that a request names, decoded from a net's scores as gliner (0.2) decodes them."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..exponential import exp
from .inputs import Tensors, head, strings

Scores = NDArray[np.float32]
Span = tuple[int, int, int]  # the characters from start to end, and the index of the label

DEFAULT_THRESHOLD = 0.5
MOST_SPANS = 20_000  # of a text above its threshold
MARGIN = 1e-3  # of a logit; scores are computed for logits that may be above the threshold only


class Postprocessor:
    """logits, offsets, text_input, candidate_labels -> entities.

    The inputs are logits [rows, windows, width, scores, labels], offsets [rows, windows, width, 2] (characters; -1 for
    tokens that stand for no word), text_input STRING [rows, 1], and candidate_labels STRING [rows, labels]. The scores
    of a word are those of the spans that begin with it, by their number of words; if `by_tokens`, they are those of the
    word as the first, the last, and any word of an entity. The logits of words come first, in order. Options are
    threshold FP32, multi_label BOOL and nested BOOL [rows, 1]. The output is entities STRING [rows, 1], a JSON list of
    {entity, score, start, end, word} for each row.
    """

    required: tuple[str, ...] = ("logits", "offsets", "text_input", "candidate_labels")
    optional: tuple[str, ...] = ("threshold", "multi_label", "nested")

    def __init__(self, by_tokens: bool) -> None:
        self._spans = _of_tokens if by_tokens else _of_spans

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read settings.json (by_tokens)."""
        return cls(settings["by_tokens"])

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the entities of each row. Raises InvalidInput for a threshold that too many spans reach."""
        rows = zip(tensors["logits"], tensors["offsets"], tensors["text_input"][:, 0], strict=True)
        options = [_option(tensors, name, rows_of) for name, rows_of in _defaults(tensors)]
        found = [
            self._entities(*row, *more) for row, *more in zip(rows, tensors["candidate_labels"], *options, strict=True)
        ]
        return {"entities": strings([[json.dumps(entities, ensure_ascii=False)] for entities in found])}

    def _entities(
        self,
        logits: Scores,
        offsets: NDArray[np.int32],
        raw: bytes,
        labels: Sequence[bytes],
        threshold: float,
        multi_label: bool,
        nested: bool,
    ) -> list[dict[str, Any]]:
        best = dict[Span, float]()  # of all windows, in the order in which gliner finds them
        for scores, places in zip(logits, offsets, strict=True):
            words = places[places[:, 0] >= 0]
            if not len(words):  # padded to the largest number of windows
                continue
            for span, score in self._spans(scores[: len(words), :, : len(labels)], words, threshold):
                best[span] = max(score, best.get(span, 0.0))
                if len(best) > MOST_SPANS:
                    raise InvalidInput(
                        f"more than {MOST_SPANS} spans reach the threshold {threshold:g}: send a higher one"
                    )
        ordered = sorted(best.items(), key=lambda each: -each[1])
        kept = _without_crossing(ordered, multi_label) if nested else _without_overlap(ordered, multi_label)
        kept.sort(key=lambda each: each[0][0])
        text = head(raw, max((end for (_, end, _), _ in kept), default=0))
        return [_entity(labels[label].decode(), score, start, end, text) for (start, end, label), score in kept]


def _defaults(tensors: Tensors) -> Iterator[tuple[str, list[Any]]]:
    rows = len(tensors["text_input"])
    for name, default in (("threshold", DEFAULT_THRESHOLD), ("multi_label", False), ("nested", False)):
        yield name, [default] * rows


def _option(tensors: Tensors, name: str, default: list[Any]) -> list[Any]:
    if name not in tensors:
        return default
    values = tensors[name].ravel().tolist()
    if len(values) != len(default):
        raise InvalidInput(f"{name} must hold one value a row, not the shape {list(tensors[name].shape)}")
    return [value or each for value, each in zip(values, default, strict=True)]  # 0: left out


def _probabilities(logits: Scores) -> Scores:
    with np.errstate(over="ignore"):
        made: Scores = np.float32(1) / (np.float32(1) + exp(-logits))
    return made


def _least(threshold: float) -> float:
    """Return a logit that is surely below the threshold."""
    return float(np.log(threshold / max(1.0 - threshold, 1e-9))) - MARGIN


def _of_spans(logits: Scores, words: NDArray[np.int32], threshold: float) -> Iterator[tuple[Span, float]]:
    """Yield the spans whose score is above the threshold, by first word, number of words, and label."""
    first, more, label = np.nonzero(logits > _least(threshold))
    scores = _probabilities(logits[first, more, label])
    valid = (scores > threshold) & (first + more < len(words))
    starts, ends = words[first[valid], 0], words[(first + more)[valid], 1]
    for start, end, at, score in zip(*(x.tolist() for x in (starts, ends, label[valid], scores[valid])), strict=True):
        yield (start, end, at), score


def _of_tokens(logits: Scores, words: NDArray[np.int32], threshold: float) -> Iterator[tuple[Span, float]]:
    """Yield the spans from a first to a last word whose words all reach the threshold, by first and last word."""
    scores = _probabilities(logits)
    begins = scores[:, 0] > threshold
    starts, ends, within = (scores[:, at].tolist() for at in range(3))
    for first, label in np.argwhere(begins).tolist():
        score = starts[first][label]
        for last in range(first, len(words)):
            if within[last][label] < threshold:
                break
            score = min(score, within[last][label])
            if ends[last][label] > threshold:
                yield (int(words[first, 0]), int(words[last, 1]), label), min(score, ends[last][label])


def _without_overlap(spans: Sequence[tuple[Span, float]], multi_label: bool) -> list[tuple[Span, float]]:
    """Return the spans, best first, that overlap no better one; with `multi_label`, a span may have several labels."""
    kept, places = list[tuple[Span, float]](), list[tuple[int, int]]()
    for span, score in spans:
        place = span[:2]
        at = bisect_left(places, place)
        if at < len(places) and places[at] == place:
            if multi_label:
                kept.append((span, score))
            continue
        if (at and places[at - 1][1] > place[0]) or (at < len(places) and places[at][0] < place[1]):
            continue
        insort(places, place)
        kept.append((span, score))
    return kept


def _without_crossing(spans: Sequence[tuple[Span, float]], multi_label: bool) -> list[tuple[Span, float]]:
    """Return the spans, best first, that are inside, around or beside each better one."""
    kept = list[tuple[Span, float]]()
    starts, ends = np.empty(len(spans), np.int64), np.empty(len(spans), np.int64)
    for span, score in spans:
        start, end, _ = span
        s, e = starts[: len(kept)], ends[: len(kept)]
        same = (s == start) & (e == end)
        apart = (start >= e) | (s >= end) | ((s <= start) & (e >= end)) | ((start <= s) & (end >= e))
        if not bool((same | apart).all()) or (not multi_label and bool(same.any())):
            continue
        starts[len(kept)], ends[len(kept)] = start, end
        kept.append((span, score))
    return kept


def _entity(name: str, score: float, start: int, end: int, text: str) -> dict[str, Any]:
    return {"entity": name, "score": score, "start": start, "end": end, "word": text[start:end]}
