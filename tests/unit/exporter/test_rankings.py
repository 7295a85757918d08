"""Rankings: nDCG@10 on a user's file, and the order of scores in the gate."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.cli import main
from hfx.errors import UsageError, VerificationFailed
from hfx.exporter.encoder.gate import Figures, judge, limits
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.labelled_data import read_data
from hfx.exporter.ranking import ndcg, rank_correlation
from hfx.names import PROMPT_NAME, Task
from hfx.python_backends.tasks import PROMPTS
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    layer_norm,
    normalize,
    pooling,
    write_cross_encoder,
    write_embedder,
)

EMBEDS, RANKS = usual_kind(Task.FEATURE_EXTRACTION), usual_kind(Task.TEXT_RANKING)
QUERIES = ("the cat in paris?", "a dog ran", "good")
ROWS = [
    (query, text, (3 * at + 5 * number) % 4) for number, query in enumerate(QUERIES) for at, text in enumerate(TEXTS)
]


def file(folder: Path, rows: Any = tuple(ROWS), header: tuple[str, ...] = ("query", "text", "relevance")) -> Path:
    path = folder / "ranked.csv"
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([header, *rows])
    return path


@pytest.mark.parametrize("texts", [2, 9, 10, 40])
def test_ndcg_is_that_of_scikit_learn(texts: int) -> None:
    from sklearn.metrics import ndcg_score

    random = np.random.default_rng(texts)
    scores = random.permutation(texts * 5).reshape(5, texts).astype(float)
    relevances = random.integers(0, 4, (5, texts)).astype(float)
    relevances[:, 0] = 1
    queries = np.repeat(np.arange(5), texts)
    mixed = random.permutation(texts * 5)
    found = ndcg(scores.ravel()[mixed].tolist(), relevances.ravel()[mixed].tolist(), queries[mixed].tolist())
    assert found == pytest.approx(ndcg_score(relevances, scores, k=10))


def test_queries_without_relevant_texts_do_not_count_and_equal_scores_gain_nothing() -> None:
    assert ndcg([3, 2, 1], [1, 0, 0], [0, 0, 1]) == 1
    assert ndcg([1, 1], [1, 0], [0, 0]) == ndcg([1, 1], [0, 1], [0, 0]) == pytest.approx(1 / np.log2(3))
    assert np.isnan(ndcg([float("nan"), 1], [1, 0], [0, 0]))


def test_a_file_of_rankings_becomes_pairs_with_the_prompts_of_their_kinds(tmp_path: Path) -> None:
    path = file(tmp_path)
    plain = read_data(path, replace(EMBEDS, omitted=frozenset(PROMPTS)), {})
    assert plain.requests[:2] == ({"text_input": QUERIES[0]}, {"text_input": TEXTS[0]})
    assert plain.queries[:: len(TEXTS)] == (0, 1, 2) and len(plain.targets) == len(plain.queries) == len(ROWS)
    assert [each[PROMPT_NAME] for each in read_data(path, EMBEDS, {}).requests[:2]] == ["query", "document"]
    assert read_data(path, RANKS, {}).requests[0] == {"query": QUERIES[0], "text_input": TEXTS[0]}
    other = file(tmp_path, header=("q", "t", "relevance"))
    assert read_data(other, RANKS, {}, ("q", "t")).requests[0] == {"query": QUERIES[0], "text_input": TEXTS[0]}


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("a", "b", "-1")], ("query", "text", "relevance"), "line 2"),
        ([("a", "b", "1"), ("a", "c", "much")], ("query", "text", "relevance"), "line 3"),
        ([("a", "b", "inf")], ("query", "text", "relevance"), "inf"),
        ([("a", "b", "0")], ("query", "text", "relevance"), "relevant"),
        ([("a", "b", "1")], ("query", "page", "relevance"), "text"),
    ],
)
def test_a_file_that_ranks_nothing_is_refused(tmp_path: Path, rows: Any, header: Any, message: str) -> None:
    for task in (EMBEDS, RANKS):
        with pytest.raises(UsageError, match=message):
            read_data(file(tmp_path, rows, header), task, {})


@pytest.mark.slow
def test_an_embedder_is_measured_as_the_library_encodes(tmp_path: Path) -> None:
    recipe = Recipe((pooling("mean"), normalize), {"prompts": {"query": "the dog: ", "document": "a cat "}})
    reference = write_embedder(tmp_path, recipe)
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="m", verify_data=(file(tmp_path),))
    queries = {query: reference.encode_query([query])[0] for query in QUERIES}
    scores = [float(queries[query] @ reference.encode_document([text])[0]) for query, text, _ in ROWS]
    expected = ndcg(scores, [relevance for *_, relevance in ROWS], [QUERIES.index(query) for query, *_ in ROWS])
    figures = manifest.parity["data"]["ranked.csv"]
    assert (figures["metric"], figures["rows"]) == ("ndcg@10", len(ROWS))
    assert figures["torch"] == pytest.approx(expected, abs=1e-6) == figures["cpu"]
    assert manifest.parity["cpu"]["rank_correlation"] > 0.999
    place = ["--repository", str(tmp_path / "repository")]
    assert main(["verify", "m", "--data", str(tmp_path / "ranked.csv"), *place]) == 0
    assert main(["verify", "m", "--data", str(tmp_path / "ranked.csv"), "--min", "1", *place]) == 4


@pytest.mark.slow
def test_a_ranking_that_has_lost_more_than_it_may_is_not_published(tmp_path: Path) -> None:
    layers = (pooling("mean", "max"), dense(2 * HIDDEN, 40, "GELU"), layer_norm(40))
    recipe = Recipe((*layers, dense(40, 1, "Identity", bias=False, module_output_name="scores")))
    reference = write_cross_encoder(tmp_path, recipe)
    texts = [f"a {'b ' * (n % 19)}cat {'dog ' * (n % 7)}" for n in range(80)]
    scores = reference.predict([(QUERIES[0], text) for text in texts])
    path = file(
        tmp_path, [(QUERIES[0], text, rank) for text, rank in zip(texts, scores.argsort().argsort(), strict=True)]
    )
    options: Any = {"name": "m", "precision": "int8", "cpu_runtime": "native", "verify_data": (path,), "strict": True}
    with pytest.raises(VerificationFailed, match=r"ndcg@10 on ranked\.csv"):
        export_checkpoint(tmp_path / "model", tmp_path / "repository", **options, max_drop=0.0)
    assert not (tmp_path / "repository" / "m").exists()
    figures = export_checkpoint(tmp_path / "model", tmp_path / "repository", **options, max_drop=0.3).parity
    assert 0.7 <= figures["data"]["ranked.csv"]["cpu"] < figures["data"]["ranked.csv"]["torch"] == 1
    assert 0.9 < figures["cpu"]["rank_correlation"] < 1


def test_scores_in_another_order_fail_the_gate() -> None:
    figures = Figures(9, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, rank_correlation=0.9)
    for precision in ("fp32", "fp16", "int8"):
        with pytest.raises(VerificationFailed, match=r"rank correlation of pairs 0\.9000"):
            judge("It", figures, limits(precision, None))  # type: ignore[arg-type]
        judge("It", figures, limits(precision, None, labelled=True))  # type: ignore[arg-type]
        judge("It", replace(figures, rank_correlation=None), limits(precision, None))  # type: ignore[arg-type]
    judge("It", figures, limits("int8", 0.2))
    with pytest.raises(VerificationFailed):
        judge("It", replace(figures, rank_correlation=float("nan")), limits("int8", 0.5))


@pytest.mark.parametrize(
    ("of_made", "words"),
    [
        ({"made_agreement": 0.94}, "agreement with ties of texts made"),
        ({"made_drift": 0.021}, "drift of texts made"),
        ({"made_ranks": 0.94}, "pairs of texts made"),
        ({"made_agreement": float("nan")}, "agreement with ties of texts made"),
    ],
)
def test_texts_made_of_the_vocabulary_have_the_limits_on_their_own(of_made: dict[str, float], words: str) -> None:
    figures = Figures(
        400, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, made_agreement=0.95, made_drift=0.02, made_ranks=0.95
    )
    judge("It", figures, limits("int8", None))
    with pytest.raises(VerificationFailed, match=words):
        judge("It", replace(figures, **of_made), limits("int8", None))  # type: ignore[arg-type]


def test_pairs_of_the_gate_have_the_same_options() -> None:
    random = np.random.default_rng(0)
    requests = [{"text_input": str(at), "dimensions": 2} if at % 3 else {"text_input": str(at)} for at in range(30)]
    vectors = [random.normal(size=2 if "dimensions" in request else 5) for request in requests]
    answers = [{"embedding": vector.tolist()} for vector in vectors]
    assert rank_correlation(EMBEDS, requests, answers, answers) == pytest.approx(1)
    opposite = [{"embedding": (vector * random.choice([-1, 1])).tolist()} for vector in vectors]
    found = rank_correlation(EMBEDS, requests, answers, opposite)
    assert found is not None and found < 0.5
    scored = [{"query": "q", "text_input": str(at)} for at in range(9)]
    rising, falling = [{"score": at} for at in range(9)], [{"score": -at} for at in range(9)]
    assert rank_correlation(RANKS, scored, rising, falling) == pytest.approx(-1)
    assert rank_correlation(RANKS, scored, [{"score": 0.5}] * 9, falling) is None
    assert rank_correlation(RANKS, scored, rising, [{"score": 0.5}] * 9) == 0
    assert np.isnan(rank_correlation(RANKS, scored, rising, [*falling[:8], {"score": float("nan")}]) or 0)
    assert rank_correlation(usual_kind(Task.TEXT_CLASSIFICATION), scored, rising, falling) is None
