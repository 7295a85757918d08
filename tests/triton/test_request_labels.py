"""Models that read the labels of a request (GLiNER, GLiClass), through `hfx serve` as in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hfx.batch.models import Repository, open_model
from hfx.cli import main
from hfx.client import Client
from hfx.errors import RequestRefused, UsageError
from hfx.local.encoder import LocalModel
from hfx.python_backends.labelled import MOST_LABELS
from tests.rigs.checkpoints import labelled
from tests.rigs.checkpoints.published import export_random
from tests.rigs.clients import chromium
from tests.rigs.clients.dialect_calls import API_KEY, BOUNDED_KEY, call
from tests.rigs.files.batch_jobs import Opened, output_rows, table
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, serving
from tests.triton.test_playground import choose, codes, fill, output_of, run

pytestmark = pytest.mark.triton
MODELS = SPANS, LABELS = "spans", "labels"
TEXT = "the cat sat in paris. a good dog ran?"
NAMED = ["cat", "paris", "good dogs"]
SETTINGS: list[dict[str, Any]] = [{}, {"threshold": 0.7}, {"nested": True}, {"nested": True, "multi_label": True}]
LONG = " ".join([TEXT] * 12)  # of three windows


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, checkpoints = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("checkpoints")
    for name, save in ((SPANS, labelled.save_gliner), (LABELS, labelled.save_gliclass)):
        (checkpoints / name).mkdir()
        export_random(save(checkpoints / name), folder, name=name)
    return folder


@pytest.fixture(scope="module")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{API_KEY}\nbounded:{BOUNDED_KEY} tokens_per_minute=60", encoding="utf-8")
    with serving(repository, "--api-key-file", str(keys)) as running:
        yield running


@pytest.fixture(params=["grpc_url", "http_url"])
def client(request: pytest.FixtureRequest, served: ServeProcess) -> Iterator[Client]:
    token = {"token": API_KEY} if request.param == "http_url" else {}
    with Client(served.ready[request.param], **token) as opened:
        yield opened


@pytest.fixture(scope="module")
def spans(repository: Path) -> LocalModel:
    return LocalModel.open(repository, SPANS)


def entities(model: LocalModel, text: str = TEXT, labels: list[str] | None = None, **settings: Any) -> Any:
    request = {"text_input": text, "candidate_labels": labels or NAMED, **settings}
    return json.loads(model.infer(request)["entities"])


def answer(served: ServeProcess, path: str, body: Any) -> Any:
    status, _, content = call(served, path, body)
    assert status == 200, content
    return content


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": SPANS, "messages": [{"role": "user", "content": text}], **fields}


@pytest.mark.parametrize("settings", SETTINGS)
def test_entities_over_both_protocols_equal_the_models_in_this_process(
    client: Client, spans: LocalModel, settings: dict[str, Any]
) -> None:
    texts = [TEXT, "a dog", LONG]
    results = client.label_tokens(SPANS, texts, NAMED, **settings)
    expected = [entities(spans, text, **settings) for text in texts]
    assert [[asdict(each) for each in result.entities] for result in results] == expected and expected[0]


@pytest.mark.parametrize("settings", SETTINGS)
def test_hugging_faces_form_takes_labels_and_settings(
    served: ServeProcess, spans: LocalModel, settings: dict[str, Any]
) -> None:
    expected = [{"entity_group": each.pop("entity"), **each} for each in entities(spans, **settings)]
    for name in ("labels", "candidate_labels"):
        body = {"inputs": TEXT, "parameters": {name: NAMED, **settings}}
        assert answer(served, f"/models/{SPANS}", body) == expected
    flat = {"flat_ner": not settings.pop("nested", False), "labels": NAMED, **settings}
    assert answer(served, f"/models/{SPANS}", {"inputs": [TEXT], "parameters": flat}) == [expected]


@pytest.mark.parametrize(("fields", "settings"), [
    ({}, {}), ({"flat_ner": False}, {"nested": True}), ({"flat_ner": True, "threshold": 0.7}, {"threshold": 0.7}),
])  # fmt: skip
def test_nemos_form_takes_labels_and_settings(
    served: ServeProcess, spans: LocalModel, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    found = answer(served, "/v1/chat/completions", chat(TEXT, labels=NAMED, **fields))
    expected = [{"text": each.pop("word"), "label": each.pop("entity"), **each} for each in entities(spans, **settings)]
    assert json.loads(found["choices"][0]["message"]["content"])["entities"] == expected


def test_presidios_form_takes_the_entities_to_find_and_lists_none_of_its_own(
    served: ServeProcess, spans: LocalModel
) -> None:
    found = answer(served, f"/models/{SPANS}/analyze", {"text": TEXT, "entities": NAMED, "score_threshold": 0.7})
    expected = [(each["entity"], each["start"], each["end"]) for each in entities(spans, threshold=0.7)]
    assert [(each["entity_type"], each["start"], each["end"]) for each in found] == expected
    status, _, refused = call(served, f"/models/{SPANS}/supportedentities")
    assert status == 400 and "no labels of its own" in refused["error"]


def test_zero_shot_classifies_in_one_pass_as_in_this_process(
    client: Client, served: ServeProcess, repository: Path
) -> None:
    local = LocalModel.open(repository, LABELS)
    for alone in (False, True):
        expected = local.infer({"text_input": TEXT, "candidate_labels": NAMED, "multi_label": alone})
        result = client.zero_shot(LABELS, TEXT, NAMED, multi_label=alone)
        assert [each.label for each in result.predictions] == expected["label"]
        assert [each.score for each in result.predictions] == expected["score"]
        parameters = {"candidate_labels": NAMED, "multi_label": alone}
        rows = answer(served, f"/models/{LABELS}", {"inputs": TEXT, "parameters": parameters})
        assert [row["score"] for row in rows] == expected["score"]


def test_missing_labels_are_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(UsageError, match="needs labels"):
        client.label_tokens(SPANS, TEXT)
    with pytest.raises(UsageError, match="needs labels"):
        client.infer(LABELS, {"text_input": TEXT})


@pytest.mark.parametrize("place", ["grpc_url", "http_url", "local"])
def test_the_command_line_finds_entities(
    place: str, served: ServeProcess, spans: LocalModel, repository: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HFX_TOKEN", API_KEY if place == "http_url" else "")
    where = ["--local", "--repository", str(repository)] if place == "local" else ["--url", served.ready[place]]
    command = ["infer", SPANS, TEXT, *where]
    assert main([*command, "--labels", ",".join(NAMED), "--threshold", "0.6", "--nested", "--multi-label"]) == 0
    expected = entities(spans, threshold=0.6, nested=True, multi_label=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:2] for line in lines] == [[each["entity"], each["word"]] for each in expected]
    assert main(command) == 2 and "--labels" in capsys.readouterr().err


def test_each_row_of_a_batch_job_may_have_its_own_labels(repository: Path, spans: LocalModel, tmp_path: Path) -> None:
    rows = [{"text": TEXT, "labels": "cat,paris"}, {"text": TEXT, "labels": '["a, b"]'}, {"text": TEXT, "labels": ""}]
    source = table(tmp_path / "in.csv", [*rows, {"text": "", "labels": "cat"}])
    columns, settings = ["text", "candidate_labels=labels"], {"threshold": [0.4], "nested": [True]}
    with open_model(SPANS, Repository(repository, threads=1)) as model:
        Opened(model, repository).run(
            tmp_path / "job", [source], columns=columns, settings=settings, file_name="out.jsonl"
        )
    first, second, unlabelled, empty = output_rows(tmp_path / "job" / "out.jsonl")
    for row, labels in ((first, ["cat", "paris"]), (second, ["a, b"])):
        expected = entities(spans, labels=labels, threshold=0.4, nested=True)
        assert [{**each, "score": pytest.approx(each["score"])} for each in expected] == row["entities"]
    assert "candidate_labels is missing" in unlabelled["error"] and "empty" in empty["error"]


def test_a_batch_job_without_labels_is_refused_before_any_work(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(table(tmp_path / "in.csv", [{"text": TEXT}]))
    for name in MODELS:
        output = ["--output", str(tmp_path / name), "--repository", str(repository)]
        assert main(["batch", "run", name, source, *output]) == 2
        assert "needs labels" in capsys.readouterr().err and not (tmp_path / name).exists()


BAD: dict[str, tuple[str, list[str]]] = {
    "no labels": (TEXT, []),
    "too many labels": (TEXT, [f"label {number}" for number in range(MOST_LABELS + 1)]),
    "a label of 10 KB": (TEXT, ["cat", "a" * 10_000]),
    "a label twice": (TEXT, ["cat", "dog", "cat"]),
    "a label with a marker": (TEXT, ["cat <<SEP>>", "dog"]),
    "an empty label": (TEXT, ["cat", " "]),
    "an empty text": ("", NAMED),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(case: str, served: ServeProcess) -> None:
    text, labels = BAD[case]
    hugging_face = {"inputs": text, "parameters": {"candidate_labels": labels}}
    tensors = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [text]},
        {"name": "candidate_labels", "datatype": "BYTES", "shape": [1, len(labels)], "data": labels},
    ]
    bodies: list[tuple[str, Any]] = [("/v1/chat/completions", chat(text, labels=labels))]
    for name in MODELS:
        bodies += [(f"/models/{name}", hugging_face), (f"/v2/models/{name}/infer", {"inputs": tensors})]
    for path, body in bodies:
        status, _, content = call(served, path, body)
        message = content["error"]["message"] if isinstance(content["error"], dict) else content["error"]
        assert (status, len(message.splitlines())) == (400, 1) and len(message) < 200, (path, message)


def test_requests_with_other_labels_in_a_batch_change_no_bit(served: ServeProcess) -> None:
    draw = random.Random(3)
    words = ["cat", "dog", "paris", "good film", "a", "b", "the sitting cats", "ran"]
    requests = [
        {"text_input": [" ".join(draw.choices(TEXT.split(), k=draw.randrange(1, 40)))]}
        | {"candidate_labels": draw.sample(words, draw.randrange(1, len(words)))}
        for _ in range(64)
    ]
    with Client(served.ready["grpc_url"], max_in_flight=64) as client:
        for name in MODELS:
            alone = [client.infer(name, request) for request in requests]
            for request, outputs, together in zip(requests, alone, client.infer_each(name, requests), strict=True):
                assert isinstance(together, dict), request
                assert {key: value.tolist() for key, value in together.items()} == {
                    key: value.tolist() for key, value in outputs.items()
                }


def test_a_refused_request_fails_alone(served: ServeProcess, spans: LocalModel) -> None:
    bad, good = ["cat", "cat"], ["dog"]
    requests = [{"text_input": TEXT, "candidate_labels": labels} for labels in (bad, good) * 8]
    with Client(served.ready["grpc_url"]) as client:
        for request, outputs in zip(requests, client.infer_each(SPANS, requests), strict=True):
            if request["candidate_labels"] == bad:
                assert isinstance(outputs, RequestRefused) and "twice" in str(outputs)
            else:
                assert isinstance(outputs, dict)
                assert json.loads(outputs["entities"][0, 0]) == entities(spans, labels=good)


def test_a_text_that_is_read_once_counts_once_against_a_keys_limit(served: ServeProcess) -> None:
    body = {"inputs": TEXT, "parameters": {"candidate_labels": ["cat", "dog", "film", "paris"]}}  # 13 tokens, 4 x 3
    assert [call(served, f"/models/{LABELS}", body, key=BOUNDED_KEY)[0] for _ in range(3)] == [200, 200, 429]


def test_liveness_probes_are_answered(served: ServeProcess) -> None:
    def counts() -> dict[str, tuple[int, int]]:
        models = {
            row["name"]: row["inference_stats"] for row in answer(served, "/v2/models/stats", None)["model_stats"]
        }
        return {name: (int(models[name]["success"]["count"]), int(models[name]["fail"]["count"])) for name in MODELS}

    before = counts()
    wait_until(lambda: all(counts()[name][0] > before[name][0] for name in MODELS), "a probe of each model")
    assert [counts()[name][1] for name in MODELS] == [before[name][1] for name in MODELS]


@chromium.needs_chromium
def test_the_playground_marks_the_entities_of_the_labels_that_its_user_writes(
    served: ServeProcess, spans: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFX_TOKEN", API_KEY)
    with chromium.tab(tmp_path) as tab:
        tab.command("Page.navigate", url=f"{served.http_url}/#model={SPANS}")
        tab.wait_for("document.activeElement?.id === 'key'")
        tab.type(API_KEY)
        tab.press("Enter")
        choose(tab, SPANS)
        fill(tab, "inputs", TEXT)
        fill(tab, "parameters.candidate_labels", "\n".join(NAMED))
        run(tab)
        marked = tab.value("[...document.querySelectorAll('#answer mark')].map(mark => mark.firstChild.data)")
        assert marked == [each["word"] for each in entities(spans)]
        printed = output_of("Python", codes(tab)["Python"]).splitlines()
        assert [line.split("  ")[2] for line in printed] == marked
