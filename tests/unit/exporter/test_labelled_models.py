"""GLiNER and GLiClass: what trained models find in fp32 and int8, their heads, and their libraries' answers.

The libraries are compared where HFX_TEST_GLINER names a folder of them (`make test-gliner`).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hfx.exporter.encoder.checkpoint.label_heads import SpanHead, TokenHead, Words
from hfx.exporter.encoder.kinds.spans import Spans
from hfx.local.encoder import LocalModel
from hfx.python_backends.labelled import LABEL, WORD
from tests import zoo
from tests.rigs.checkpoints.published import export_checkpoint, export_zoo
from tests.zoo.objectives.objective import micro_f1

SPANS, TOPICS = "labelled-spans-deberta", "labelled-topics-deberta"
ORACLE = os.environ.get("HFX_TEST_GLINER")
needs_libraries = pytest.mark.skipif(not ORACLE, reason="no gliner and gliclass (make test-gliner)")
LEAST_INT8 = 0.99  # F1 of int8 against fp32
ENTITY_LABELS = {"date": "", "organization": "ORG", "person": "PER", "place": "LOC"}
HELD_OUT, REQUESTS = 300, 60
DIFFERENCE = 1e-5  # of a score in fp32
POOL = (
    "Anna met Erik in Oslo . The quick-brown fox_jumps over 123 lazy dogs , Nordic Bank was founded by Vera Haas on "
    "Monday ! é ü 日本 語 😀 don't a@b.com x Port Haven Axion"
)
LABEL_POOL = (
    "person", "place", "organization", "date", "email address", "animal", "PRODUCT-name", "a", "Ünïcode läbel", "日本",
)  # fmt: skip
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "type_vocab_size": 0,
    "relative_attention": True, "position_buckets": 32, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "as-published": {},
    "marker": {"span_mode": "marker", "num_rnn_layers": 0},
    "words": {"span_mode": "token_level", "num_rnn_layers": 2, "hidden_size": 32},
    "tokens": {"subtoken_pooling": "last", "embed_ent_token": False, "num_rnn_layers": 2},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both trained models in fp32 and in int8."""
    folder = tmp_path_factory.mktemp("repository")
    for name in (SPANS, TOPICS):
        for precision in ("fp32", "int8"):
            export_zoo(name, folder, f"{name}-{precision}", precision)
    return folder


def entities_of(answer: Any) -> set[tuple[int, int, str]]:
    found = ((each["start"], each["end"], ENTITY_LABELS[each["entity"]]) for each in json.loads(answer["entities"]))
    return {each for each in found if each[2]}


def topics_of(answer: Any) -> set[str]:
    return {label for label, score in zip(answer["label"], answer["score"], strict=True) if score > 0.5}


@pytest.mark.slow
def test_the_trained_model_finds_entities_of_other_texts_and_int8_finds_the_same(repository: Path) -> None:
    examples = zoo.heldout("entities", HELD_OUT)
    requests = [{"text_input": each.text, "candidate_labels": list(ENTITY_LABELS)} for each in examples]
    expected = [{(each.start, each.end, each.label) for each in example.entities} for example in examples]
    assert_found(repository, SPANS, requests, entities_of, expected)


@pytest.mark.slow
def test_the_trained_model_finds_topics_of_other_texts_and_int8_finds_the_same(repository: Path) -> None:
    examples = zoo.heldout("topics", HELD_OUT)
    labels = ["weather", "music", "travel", "food", "sport", "money"]
    requests = [{"text_input": each.text, "candidate_labels": labels, "multi_label": True} for each in examples]
    assert_found(repository, TOPICS, requests, topics_of, [set(each.labels) for each in examples])


def assert_found(
    repository: Path, name: str, requests: list[Any], read: Callable[[Any], set[Any]], expected: list[set[Any]]
) -> None:
    fp32, int8 = (
        [read(answer) for answer in LocalModel.open(repository, f"{name}-{precision}").infer_all(requests)]
        for precision in ("fp32", "int8")
    )
    floor = zoo.recipes.BY_NAME[name].floor
    assert micro_f1(fp32, expected) >= floor
    assert micro_f1(int8, expected) >= floor
    assert micro_f1(int8, fp32) >= LEAST_INT8


HEADS: dict[str, Callable[[Words], Any]] = {
    "markerV0": lambda words: SpanHead(words, 24, 5, True),
    "marker": lambda words: SpanHead(words, 24, 5, False),
    "token_level": lambda words: TokenHead(words, 24),
}


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("encoder_width", [24, 40])
@pytest.mark.parametrize("mode", HEADS)
def test_the_folded_head_has_the_scores_of_the_head(mode: str, encoder_width: int, layers: int) -> None:
    torch.manual_seed(layers)
    head = HEADS[mode](Words(encoder_width, 24, layers)).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    counts = [(3, 9), (1, 1), (6, 4), (2, 14)]  # labels and words of each row
    rows = [[1, *[LABEL, 1] * labels, *[WORD, 1] * words, 1] for labels, words in counts]
    mask = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    states = torch.randn(*mask.shape, encoder_width)
    with torch.inference_mode():
        expected, scores = head(states, mask), head.folded()(states, mask)
    for row, (labels, _) in enumerate(counts):
        torch.testing.assert_close(scores[row, ..., :labels], expected[row, ..., :labels], rtol=1e-5, atol=1e-5)
    assert expected.abs().max() > 0.5


@pytest.fixture(scope="module")
def oracle() -> Iterator[None]:
    """The libraries' folder is first on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ORACLE))
        yield


def drawn_requests(seed: str) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "text_input": " ".join(chance.choices(POOL.split(), k=chance.choice((1, 2, 5, 12, 30, 45)))),
            "candidate_labels": chance.sample(LABEL_POOL, chance.randint(1, len(LABEL_POOL))),
            "threshold": chance.choice((0.3, 0.5, 0.5, 0.7)),
            "nested": chance.random() < 0.4,
            "multi_label": chance.random() < 0.4,
            "long": "truncate",
        }
        for _ in range(REQUESTS)
    ]


def write_gliner(folder: Path, settings: dict[str, Any]) -> Path:
    """Save a model of random weights by the library; return its folder."""
    from gliner import GLiNER
    from transformers import AutoTokenizer, DebertaV2Config

    torch.manual_seed(1)
    base = folder / "base"
    tokenizer: Any = AutoTokenizer.from_pretrained(zoo.tokenizer(SPANS))
    tokenizer.save_pretrained(base)
    encoder = DebertaV2Config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES)
    encoder.save_pretrained(base)
    own = {
        "model_name": str(base),
        "max_width": 6,
        "hidden_size": 24,
        "max_len": 40,
        "encoder_config": encoder.to_dict(),
    }
    model = GLiNER.from_config(own | settings, backbone_from_pretrained=False)
    for name, parameter in model.model.named_parameters():
        if parameter.dim() > 1 or "rnn" in name:
            torch.nn.init.normal_(parameter, std=0.25 if "bert_layer" in name else 0.15)
    model.save_pretrained(folder / "model")
    return folder / "model"


@needs_libraries
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sentence of length")
@pytest.mark.parametrize("variant", [SPANS, *VARIANTS])
def test_entities_are_those_of_gliner(variant: str, oracle: None, repository: Path, tmp_path: Path) -> None:
    from gliner import GLiNER

    if variant == SPANS:
        checkpoint, model = zoo.checkpoint(SPANS), LocalModel.open(repository, f"{SPANS}-fp32")
    else:
        checkpoint = write_gliner(tmp_path, VARIANTS[variant])
        export_checkpoint(checkpoint, tmp_path / "repository", name="m")
        model = LocalModel.open(tmp_path / "repository", "m")
    library, requests, total = GLiNER.from_pretrained(str(checkpoint)).eval(), drawn_requests(variant), 0
    for request, answer in zip(requests, model.infer_all(requests), strict=True):
        expected = library.predict_entities(
            request["text_input"],
            request["candidate_labels"],
            threshold=request["threshold"],
            flat_ner=not request["nested"],
            multi_label=request["multi_label"],
        )
        found = json.loads(answer["entities"])
        assert [(each["entity"], each["start"], each["end"], each["word"]) for each in found] == [
            (each["label"], each["start"], each["end"], each["text"]) for each in expected
        ], request
        scores = [each["score"] for each in found]
        assert scores == pytest.approx([each["score"] for each in expected], abs=DIFFERENCE, rel=0)
        total += len(found)
    assert total > REQUESTS


@needs_libraries
@pytest.mark.slow
def test_scores_are_those_of_gliclass(oracle: None, repository: Path) -> None:
    from gliclass import GLiClassModel, ZeroShotClassificationPipeline
    from transformers import AutoTokenizer

    checkpoint = zoo.checkpoint(TOPICS)
    library: Any = ZeroShotClassificationPipeline(
        GLiClassModel.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint), device="cpu",
        progress_bar=False, max_length=256,
    )  # fmt: skip
    names = ("text_input", "candidate_labels", "multi_label")
    requests = [{name: request[name] for name in names} for request in drawn_requests(TOPICS)]
    for request, answer in zip(
        requests, LocalModel.open(repository, f"{TOPICS}-fp32").infer_all(requests), strict=True
    ):
        kind = "multi-label" if request["multi_label"] else "single-label"
        [expected] = library(request["text_input"], request["candidate_labels"], threshold=-1, classification_type=kind)
        scores = dict(zip(answer["label"], answer["score"], strict=True))
        assert expected
        for each in expected:  # the best label, or all labels
            assert scores[each["label"]] == pytest.approx(each["score"], abs=DIFFERENCE, rel=0)


def test_an_answer_with_another_entity_differs_although_a_second_one_is_a_tie() -> None:
    def answer(*found: tuple[int, float]) -> dict[str, Any]:
        entities = [{"entity": "place", "score": score, "start": at, "end": at + 4} for at, score in found]
        return {"entities": json.dumps(entities)}

    kind, reference = Spans(), answer((0, 0.9), (9, 0.51))  # which has a score near the threshold
    assert not kind.compare(reference, answer((0, 0.9))).differs
    assert kind.compare(reference, answer((9, 0.51))).differs
    assert kind.compare(reference, answer()).tie and kind.compare(reference, answer()).differs
