"""Served answers compared with reference models: planted faults are found; skipped comparisons have a reason."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hfx.client import tensors
from hfx.exporter.shadow import Comparisons, ServedAnswer, Verdict
from hfx.local.encoder import LocalModel
from hfx.local.generator import LocalGenerator
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.tiers import full, thinned

pytestmark = pytest.mark.slow
TEXTS = [
    "What a lovely garden.",
    "The film was awful.",
    "It rained all day.",
    "We liked the food a lot.",
]
TEXTS = [f"{text} {other}" for text in TEXTS for other in TEXTS]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8", "onnxruntime")
    export_zoo("summaries-bart", folder, "summaries", "int8", "onnxruntime")
    return folder


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    export_zoo("sentiment-distilbert", folder, "sentiment", "fp32", "onnxruntime")
    export_zoo("summaries-bart", folder, "summaries", "fp32", "onnxruntime")
    return folder


def infer(request: dict[str, Any], answer: dict[str, Any], name: str = "sentiment") -> ServedAnswer:
    bodies = [json.dumps({"inputs": _tensors(request)}), json.dumps({"outputs": _tensors(answer)})]
    return ServedAnswer(f"/v2/models/{name}/infer", (None, None), "", bodies[0].encode(), bodies[1].encode())


def _tensors(values: dict[str, Any]) -> list[dict[str, Any]]:
    rows = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    kinds = {str: "BYTES", float: "FP32", int: "INT32"}
    return [
        {"name": name, "datatype": kinds[type(row[0])], "shape": [1, len(row)], "data": row}
        for name, row in rows.items()
    ]


def answers(repository: Path) -> list[dict[str, Any]]:
    return LocalModel.open(repository, "sentiment").infer_all([{"text_input": text} for text in TEXTS])


def verdicts(comparisons: Comparisons, found: list[dict[str, Any]]) -> list[Verdict]:
    return [comparisons.verdict(infer({"text_input": text}, answer)) for text, answer in zip(TEXTS, found, strict=True)]


def flipped(number: int) -> Callable[[Path], None]:
    """Return a fault: one flipped bit of a weight."""

    def plant(repository: Path) -> None:
        folder, draw = repository / "sentiment_net/1", random.Random(number)
        graph = onnx.load(folder / "model.int8.onnx", load_external_data=False).graph
        weights = [each for each in graph.initializer if each.external_data and "embed" not in each.name]
        chosen = draw.choice(weights)
        place = {entry.key: entry.value for entry in chosen.external_data}
        file = folder / place["location"]
        content = bytearray(file.read_bytes())
        size = 4 if chosen.data_type == onnx.TensorProto.FLOAT else 1
        at = int(place["offset"]) + draw.randrange(int(place["length"]) // size) * size + size - 1
        content[at] ^= 0x40
        file.write_bytes(content)

    return plant


def edited(member: str, edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a fault: a changed JSON file."""

    def plant(repository: Path) -> None:
        path = repository / member
        value = json.loads(path.read_text())
        edit(value)
        path.write_text(json.dumps(value))

    return plant


def swap_words(tokenizer: Any) -> None:
    """Reverse the order of the ids of the vocabulary's words."""
    vocabulary = tokenizer["model"]["vocab"]
    words = [word for word in vocabulary if word.isalpha()]
    for word, other in zip(words, sorted((vocabulary[word] for word in words), reverse=True), strict=True):
        vocabulary[word] = other


SETTINGS, TOKENIZER = "sentiment_postprocess/1/settings.json", "sentiment_tokenize/1/tokenizer.json"
READ = "sentiment_tokenize/1/settings.json"
GROSS = {
    "labels swapped": edited(SETTINGS, lambda value: value["labels"].reverse()),
    "another activation": edited(SETTINGS, lambda value: value.update(activation="sigmoid")),
    "no activation": edited(SETTINGS, lambda value: value.update(activation="none")),
    "a label renamed": edited(SETTINGS, lambda value: value.update(labels=[f"{label}?" for label in value["labels"]])),
    "words swapped": edited(TOKENIZER, swap_words),
    "another tokenizer": edited(TOKENIZER, lambda value: value["model"].update(vocab={"[UNK]": 0, "a": 1})),
    "no normalizer": edited(TOKENIZER, lambda value: value.update(normalizer=None)),
    "texts cut": edited(READ, lambda value: value.update(max_length=4)),
}


def faulty(served: Path, folder: Path, plant: Callable[[Path], None]) -> Path:
    """Return a copy of the classifier with a fault in files of its own."""
    for source in served.glob("sentiment*"):
        shutil.copytree(source, folder / source.name)
    plant(folder)
    return folder


@pytest.mark.parametrize("flips", [4, full(22)])
def test_each_answer_that_a_fault_changes_is_found(flips: int, served: Path, tmp_path: Path) -> None:
    """Faults are compared with the same publication, bit by bit."""
    sound, comparisons, found = answers(served), Comparisons(served, served, "cpu"), 0
    assert {verdict.same for verdict in verdicts(comparisons, sound)} == {1}
    faults = [flipped(number) for number in range(flips)] + [*GROSS.values()]
    for number, plant in enumerate(faults):
        try:
            given = answers(faulty(served, tmp_path / str(number), plant))
        except Exception:  # a model that can't be opened answers nothing wrong
            continue
        compared = verdicts(comparisons, given)
        assert [verdict.differs for verdict in compared] == [a != b for a, b in zip(sound, given, strict=True)]
        assert all(verdict.agreement == 1.0 and verdict.drift_limit is None for verdict in compared)
        found += any(verdict.differs for verdict in compared)
    assert found >= 0.8 * len(faults)


@pytest.mark.parametrize("fault", thinned(sorted(set(GROSS) - {"no normalizer"})))
def test_gross_faults_break_the_limits_of_the_gate(fault: str, served: Path, references: Path, tmp_path: Path) -> None:
    comparisons = Comparisons(served, references, "cpu")
    assert not breaks_limits(verdicts(comparisons, answers(served)))
    try:
        given = answers(faulty(served, tmp_path, GROSS[fault]))
    except Exception:
        return
    assert breaks_limits(verdicts(comparisons, given))


def breaks_limits(compared: list[Verdict]) -> bool:
    count = sum(verdict.same + verdict.tie + verdict.differs for verdict in compared)
    agreement = 1 - sum(verdict.differs for verdict in compared) / count
    drift = sum(verdict.drift for verdict in compared) / count
    assert compared[0].drift_limit is not None
    return agreement < compared[0].agreement or drift > compared[0].drift_limit


def generate(answer: bytes, kind: str = "generate", **fields: Any) -> ServedAnswer:
    body = json.dumps({"id": "x", **fields}).encode()
    return ServedAnswer(f"/v2/models/summaries_stream/{kind}", (None, None), "", body, answer)


@pytest.mark.parametrize("settings", [{"max_tokens": 6}, {"max_tokens": 6, "num_beams": 3}])
def test_texts_of_generators_are_compared(settings: dict[str, Any], served: Path) -> None:
    comparisons = Comparisons(served, served, "cpu")
    request = {"text_input": TEXTS[0], **settings}
    with LocalGenerator.open(served, "summaries") as generator:
        text = generator.infer(request)["text_output"]
    whole = json.dumps({"model_name": "summaries", "text_output": text}).encode()
    pieces = "".join(f"data: {json.dumps({'text_output': each})}\n\n" for each in (text[:3], text[3:])).encode()
    assert comparisons.verdict(generate(whole, **request)).same == 1
    assert comparisons.verdict(generate(pieces, "generate_stream", **request, stream=True)).same == 1
    assert comparisons.verdict(infer(request, {"text_output": text}, "summaries")).same == 1
    other = whole.replace(b'text_output": "', b'text_output": "X')
    assert comparisons.verdict(generate(other, **request)).differs == 1


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (generate(b'{"text_output": "a"}', text_input="a", num_beams=1, temperature=0.7), "random"),
        (generate(b'{"text_output": "a"}', text_input="a", num_beams=1, seed=1, top_p=0.5), "random"),
        (generate(b'{"text_output": ""}', text_input="", cancel_request="front-1"), "refused"),
        (generate(b'data: {"error": "late"}\n\n', "generate_stream", text_input="a"), "refused"),
        (generate(b"nothing", text_input="a"), "unread"),
        (generate(b'{"text_output": ["a", "b"]}', text_input="a"), "unread"),
        (infer({"text_input": "a"}, {"label": "x"}, "another"), "missing"),
        (infer({"text_input": "a"}, {"strange": "x"}), "unread"),
        (infer({"other_input": "a"}, {"label": "x"}), "refused"),
        (ServedAnswer("/v2/models/sentiment/infer", (None, None), "", b"[]", b"{}"), "refused"),
        (ServedAnswer("/v2/models/sentiment/infer", (4, 9), "", b"\xff" * 9, b"\x00" * 9), "refused"),
        (ServedAnswer("/v2/models/sentiment/infer", (None, None), "gzip", b"{}", b"not gzip"), "refused"),
        (
            ServedAnswer("/v2/models/sentiment/infer", (None, None), "gzip", b"{}", gzip.compress(bytes(9 << 20))),
            "unread",
        ),
    ],
)
def test_answers_that_cannot_be_compared_have_a_reason(pair: ServedAnswer, reason: str, served: Path) -> None:
    verdict = Comparisons(served, served, "cpu").verdict(pair)
    assert (verdict.skipped, verdict.same, verdict.differs) == (reason, 0, 0)


def test_binary_and_compressed_bodies_are_read_and_their_first_rows_compared(served: Path) -> None:
    texts = TEXTS[:6]
    request, headers = tensors.encode_infer("", {"text_input": np.array([[t.encode()] for t in texts], np.object_)})
    found = answers(served)[:6]
    scores = [value for each in found for value in each["score"]]
    outputs = [{"name": "score", "datatype": "FP32", "shape": [6, 1], "data": scores}]
    body = gzip.compress(json.dumps({"outputs": outputs}).encode())
    head = int(headers[tensors.HEADER_LENGTH])
    pair = ServedAnswer("/v2/models/sentiment/infer", (head, None), "gzip", request, body)
    assert Comparisons(served, served, "cpu").verdict(pair).same == 4


def test_a_reference_that_is_published_again_is_opened_again(served: Path, references: Path, tmp_path: Path) -> None:
    for source in served.glob("sentiment*"):
        shutil.copytree(source, tmp_path / source.name)
    comparisons = Comparisons(served, tmp_path, "cpu")
    [answer] = answers(served)[:1]
    pair = infer({"text_input": TEXTS[0]}, answer)
    assert comparisons.verdict(pair).agreement == 1.0
    for source in references.glob("sentiment*"):
        shutil.rmtree(tmp_path / source.name)
        shutil.copytree(source, tmp_path / source.name)
    os.utime(tmp_path / "sentiment/hfx.json")
    assert comparisons.verdict(pair).agreement == 0.95
