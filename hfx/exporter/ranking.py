"""Measure rankings: nDCG on labelled queries, and the rank correlation of two models.

The score of a pair is a re-ranker's, or the similarity of an embedder's two vectors (EncoderKind.pair_scores).
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
NEIGHBOURS = 8  # each text of the gate is compared with this many others
# Scores that differ by less than this share of the largest are equal. Some texts of the gate are the same to a model
# that truncates them, or knows none of their words; their order depends on rounding.
EQUAL, TINY = 1e-5, 1e-30


def ndcg(scores: Sequence[float], relevances: Sequence[float], queries: Sequence[int]) -> float:
    """Return the mean nDCG@10 of the queries with a relevant text; `queries` has the number of each pair's query.

    As in trec_eval, the gain is the relevance, divided by log2 of the rank + 1. Among equal scores the least relevant
    text comes first, so that a model that gives all texts one score gains nothing from the order of the file.
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
    """Return the rank correlation of scores with the targets, which are numbers."""
    return _correlation(np.asarray(scores), np.array([float(target) for target in targets]))


def _correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return Spearman's correlation, as scipy.stats.spearmanr does; NaN for a constant, and if any value is NaN."""
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ranks of `values`, from 1; equal values have the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def rank_correlation(
    kind: EncoderKind, requests: Sequence[Mapping[str, Any]], reference: Sequence[Answer], answers: Sequence[Answer]
) -> float | None:
    """Return Spearman's correlation of two models' scores of the gate's pairs.

    The scores of embedders are the similarities of each text with the next NEIGHBOURS texts that have the same options.
    The result is None if there are no texts, if they are not ranked, or if all reference scores are equal.
    """
    if not kind.ranks or not requests:
        return None
    pairs = range(len(requests)) if names.QUERY in requests[0] else _neighbours(requests)
    expected, found = (np.array(kind.pair_scores([each[at] for at in pairs])) for each in (reference, answers))
    if not np.all(np.isfinite(found)):
        return float("nan")
    step = EQUAL * max(float(np.abs(expected).max()), TINY)
    found = np.where(np.abs(found - expected) <= step, expected, found)
    expected, found = np.round(expected / step), np.round(found / step)
    if np.ptp(expected) == 0 or np.ptp(found) == 0:
        return None if np.ptp(expected) == 0 else 0.0
    return _correlation(expected, found)


def _neighbours(requests: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of pairs of requests; the two of a pair follow each other."""
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
