"""How texts are ranked: nDCG on labelled queries, and whether two models put texts into the same order.

A pair's score is a re-ranker's, or the similarity of an embedder's two vectors (EncoderKind.pair_scores).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hfx import names

if TYPE_CHECKING:  # the tasks import this file
    from hfx.exporter.encoder.kinds.kind import Answer, EncoderKind

NDCG = "ndcg@10"
DEPTH = 10
NEIGHBOURS = 8  # texts that each of the gate's is compared with
# Scores nearer than this share of the largest are equal. The gate has texts that are the same to a model that cuts
# them, or knows none of their words, whose order is that of rounding.
EQUAL, TINY = 1e-5, 1e-30


def ndcg(scores: Sequence[float], relevances: Sequence[float], queries: Sequence[int]) -> float:
    """The mean nDCG@10 of the queries with a relevant text; `queries` numbers each pair's query.

    As trec_eval: the gain is the relevance, divided by log2 of the rank + 1. Of equal scores the worse text counts as
    the first, so that a model that tells nothing apart gains nothing by the file's order.
    """
    groups: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for score, relevance, query in zip(scores, relevances, queries, strict=True):
        groups[query].append((score, relevance))
    shares = [
        _gain([relevance for _, relevance in sorted(group, key=lambda pair: (-pair[0], pair[1]))]) / best
        for group in groups.values()
        if (best := _gain(sorted((relevance for _, relevance in group), reverse=True)))
    ]
    return float(np.mean(shares)) if np.all(np.isfinite(scores)) else float("nan")


def _gain(relevances: Sequence[float]) -> float:
    best = np.asarray(relevances[:DEPTH], np.float64)
    return float((best / np.log2(np.arange(2, len(best) + 2))).sum())


def spearman(scores: Sequence[float], targets: Sequence[str]) -> float:
    """Rank correlation of scores with the targets, which are numbers."""
    return _correlation(np.asarray(scores), np.array([float(target) for target in targets]))


def _correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Spearman's, as scipy.stats.spearmanr's; NaN for a constant, and for values that are not numbers."""
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """From 1; equal values have the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def rank_correlation(
    task: EncoderKind, requests: Sequence[Mapping[str, Any]], reference: Sequence[Answer], answers: Sequence[Answer]
) -> float | None:
    """Spearman's correlation of two models' scores of the gate's pairs; None where the first has no order to keep.

    Of embedders they are the similarities of each text with the next ones that have the same options.
    """
    if not task.ranks:
        return None
    pairs = range(len(requests)) if names.QUERY in requests[0] else _neighbours(requests)
    expected, found = (np.array(task.pair_scores([each[at] for at in pairs])) for each in (reference, answers))
    if not np.all(np.isfinite(found)):
        return float("nan")
    step = EQUAL * max(float(np.abs(expected).max()), TINY)
    expected, found = np.round(expected / step), np.round(found / step)
    if np.ptp(expected) == 0 or np.ptp(found) == 0:
        return None if np.ptp(expected) == 0 else 0.0
    return _correlation(expected, found)


def _neighbours(requests: Sequence[Mapping[str, Any]]) -> list[int]:
    """Indices of pairs of requests, the two of each in turn."""
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        options = {name: value for name, value in request.items() if name != names.TEXT_INPUT}
        alike[json.dumps(options, sort_keys=True)].append(index)
    pairs = [
        (first, second)
        for members in alike.values()
        for place, first in enumerate(members)
        for second in members[place + 1 : place + 1 + NEIGHBOURS]
    ]
    return [index for pair in pairs for index in pair]
