"""Encoders of every kind in int8, in fp32 and in float16: near sentence-transformers, and the same in any batch.

How each kind answers in float32 is in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from hfx.local import Device
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.colbert_models import write_pylate, write_stanford
from tests.rigs.checkpoints.decoder_rankers import Ranker, write_classifier, write_logit_ranker
from tests.rigs.checkpoints.sentence_answers import answers, published, sparse_vectors
from tests.rigs.checkpoints.sentence_models import (
    TEXTS,
    Recipe,
    furthest,
    normalize,
    static_embedding,
    write_cross_encoder,
    write_embedder,
    write_multi_vector_encoder,
    write_router,
    write_sparse_encoder,
)
from tests.rigs.machine.tiers import few, full
from tests.unit.exporter import (
    test_cross_encoders,
    test_decoder_embedders,
    test_multi_vector_encoders,
    test_sentence_pipelines,
    test_sparse_encoders,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PAIRS = test_cross_encoders.PAIRS
QUERY = {"prompt_name": "query"}
Rows = list[Any]


def likeness(found: Rows, expected: Rows) -> float:
    """Return the least mean cosine of the vectors of a text's tokens, which have the length 1."""
    assert [each.shape for each in found] == [each.shape for each in expected]
    return min(float((a * b).sum(1).mean()) for a, b in zip(found, expected, strict=True))


def cosine(found: Rows, expected: Rows) -> float:
    """Return the least cosine of the vectors of texts, after checking that a vector is 0 where the library's is."""
    assert not any(a.any() for a, b in zip(found, expected, strict=True) if not b.any())
    told = [place for place, vector in enumerate(expected) if vector.any()]
    return 1 - furthest([found[place] for place in told], [expected[place] for place in told])


def correlation(found: Rows, expected: Rows) -> float:
    return float(np.corrcoef(found, expected)[0, 1])


@dataclass(frozen=True)
class Kind:
    """A kind of model: its `requests`, the library's row of each, and how near int8 and float16 have to be."""

    row: Callable[[Any, Mapping[str, str]], Any]
    requests: tuple[Mapping[str, str], ...] = tuple({"text_input": text} for text in TEXTS)
    output: str = "embedding"
    nearness: Callable[[Rows, Rows], float] = cosine
    int8: float = 0.95
    max_drop: float | None = 0.5  # of random weights
    float16: float = 1 - 1e-4

    def rows(self, model: LocalModel) -> Rows:
        """Return the model's rows, after checking that they have the same bits alone and in the reverse order."""
        rows = self._answers(model, self.requests)
        alone = [self._answers(model, (request,))[0] for request in self.requests]
        for others in (alone, self._answers(model, self.requests[::-1])[::-1]):
            assert all(np.array_equal(a, b) for a, b in zip(rows, others, strict=True))
        return rows

    def _answers(self, model: LocalModel, requests: tuple[Mapping[str, str], ...]) -> Rows:
        return [np.array(answer[self.output]) for answer in model.infer_all([dict(each) for each in requests])]

    def expected(self, reference: Any) -> Rows:
        return [self.row(reference, request) for request in self.requests]


def sparse(reference: Any, request: Mapping[str, str]) -> Any:
    return reference.encode([request["text_input"]], convert_to_sparse_tensor=False)[0].numpy()


def of_role(reference: Any, request: Mapping[str, str]) -> Any:
    encode = {"query": reference.encode_query, "document": reference.encode_document}[request["prompt_name"]]
    return encode([request["text_input"]])[0].numpy()


EMBEDDER = Kind(lambda reference, request: reference.encode([request["text_input"]])[0])
DECODER = Kind(EMBEDDER.row, int8=0.995, max_drop=None)
SPARSE = Kind(sparse)
COLBERT = Kind(
    of_role,
    tuple({"text_input": text, "prompt_name": role} for role in ("query", "document") for text in TEXTS),
    nearness=likeness,
    int8=0.98,
    float16=0.999,
)
RANKER = Kind(
    lambda reference, request: reference.predict([(request["query"], request["text_input"])])[0],
    tuple({"query": query, "text_input": text} for query, text in PAIRS),
    "score",
    correlation,
    0.9,
)


def colbert(folder: Path, write: Callable[[Path], Path]) -> Any:
    return MultiVectorEncoder(str(write(folder / "model")), device="cpu")


def embedders(kind: Kind, recipes: Mapping[str, Recipe], *names: str) -> dict[str, tuple[Kind, Callable[[Path], Any]]]:
    return {name: (kind, partial(write_embedder, recipe=recipes[name])) for name in names}


# Name -> the kind of model, and what saves one in FOLDER/model and returns it as the library reads it.
MODELS: dict[str, tuple[Kind, Callable[[Path], Any]]] = {
    **embedders(EMBEDDER, test_sentence_pipelines.RECIPES, "residual-projected", "layer-norm", "prompts-mean"),
    **embedders(EMBEDDER, test_sentence_pipelines.RECIPES, "weighted-long", "t5", "t5-gated"),
    **embedders(DECODER, test_decoder_embedders.RECIPES, "qwen-window", "llama", "gemma-causal", "gemma"),
    "static": (EMBEDDER, lambda folder: static_embedding(folder / "model", normalize)),
    "sparse": (SPARSE, partial(write_sparse_encoder, recipe=test_sparse_encoders.RECIPES["max"])),
    "sparse-sum": (SPARSE, partial(write_sparse_encoder, recipe=test_sparse_encoders.RECIPES["sum-twice"])),
    "router": (SPARSE, partial(write_router, recipe=test_sparse_encoders.RECIPES["max"])),
    "tokens": (COLBERT, partial(write_multi_vector_encoder, recipe=test_multi_vector_encoders.RECIPES["plain"])),
    "stanford": (COLBERT, partial(colbert, write=write_stanford)),
    "pylate": (
        COLBERT,
        partial(
            colbert,
            write=partial(write_pylate, model_type="modernbert", pieces="roberta", attend_to_expansion_tokens=True),
        ),
    ),
    "cross-encoder": (RANKER, partial(write_cross_encoder, recipe=test_cross_encoders.RECIPES["plain"])),
    "cross-encoder-layers": (
        RANKER,
        partial(write_cross_encoder, recipe=test_cross_encoders.RECIPES["several-layers"]),
    ),
    "ranker-logits": (RANKER, partial(write_logit_ranker, ranker=Ranker())),
    "ranker-head": (RANKER, partial(write_classifier, ranker=Ranker())),
}
INTEGERS = [name for name in MODELS if name != "static"]
FLOATS = ("layer-norm", "weighted-long", "t5", "qwen-window", "gemma", "static", "sparse-sum", "router", "tokens")


# The native operators run the graph of every kind; in `make test`, each kind of row and of pooling once.
@pytest.mark.parametrize("runtime", ["native", full("onnxruntime")])
@pytest.mark.parametrize(
    "name", few(INTEGERS, "prompts-mean", "t5", "gemma", "router", "stanford", "cross-encoder-layers", "ranker-head")
)
def test_int8_is_near_the_library_and_the_same_in_any_batch(name: str, runtime: str, tmp_path: Path) -> None:
    kind, write = MODELS[name]
    reference = write(tmp_path)
    model = published(tmp_path, precision="int8", cpu_runtime=runtime, max_drop=kind.max_drop)
    assert kind.nearness(kind.rows(model), kind.expected(reference)) > kind.int8
    if name == "router":  # which looks queries up
        assert np.array_equal(answers(model, **QUERY), sparse_vectors(reference.encode_query))


@pytest.mark.parametrize("runtime", ["native", "onnxruntime"])
@pytest.mark.parametrize("name", few(FLOATS, "weighted-long", "sparse-sum", "tokens"))
def test_fp32_and_float16_have_the_rows_of_the_library(name: str, runtime: str, tmp_path: Path) -> None:
    kind, write = MODELS[name]
    reference = write(tmp_path)
    expected = kind.expected(reference)
    published(tmp_path, precision=None, device="both", cpu_runtime=runtime)
    limits: dict[Device, float] = {"cpu": 1 - 1e-5, "gpu": kind.float16}
    for device, limit in limits.items():
        model = LocalModel.open(tmp_path / "repository", "model", device, "CPU")
        assert kind.nearness(kind.rows(model), expected) >= limit
        if name == "router":
            queries = sparse_vectors(reference.encode_query)
            np.testing.assert_allclose(answers(model, **QUERY), queries, rtol=1e-3)
