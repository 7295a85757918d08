"""Exported adapters answer as models of their own, while a server has one net for all of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.client import Client
from hfx.deploy.deployment import open_deployment
from hfx.deploy.folder import copy_models
from hfx.errors import ModelCorrupt, ServerError
from hfx.exporter.adapters.export import export_set, read_set
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.manifest import Manifest, hash_file, read_manifest, verify_files
from hfx.names import MANIFEST_FILE
from hfx.triton.models import check_published, damaged_models, read_settled
from tests import zoo
from tests.rigs.checkpoints import adapters
from tests.rigs.checkpoints.adapters import write_adapter, write_head
from tests.rigs.checkpoints.published import cached
from tests.rigs.clients.repeated_calls import calling
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.renamed import copy_renamed, seal
from tests.rigs.servers.serve_process import ServeProcess, post, serving
from tests.rigs.servers.short_servers import shared_nets, started

pytestmark = pytest.mark.triton

BASE = "sentiment-distilbert"
LABELS = ["joy", "anger", "fear", "love", "surprise"]
ALL_LINEARS = ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "two": {},
    "five": {"labels": 5, "names": LABELS},
    "single": {"labels": 1},
    "wide": {"labels": 3, "r": 16, "target_modules": ALL_LINEARS},
}
NAMES = (*ADAPTERS, "head")
TEXTS = [example.text for example in zoo.heldout("sentiment", 12)]
THREADS = 16
RELOAD_SECONDS = 10  # measured: 0.1 to 0.3 s
Answers = list[list[tuple[str, float]]]


def publish(folders: Mapping[str, Path], repository: Path, force: bool = False) -> None:
    options = ExportOptions(precision="int8", repository=repository, force=force)
    to_export = read_set(open_checkpoint(str(zoo.checkpoint(BASE))), folders, options)
    outcomes = [outcome for _, outcome in export_set(to_export, lambda title: nullcontext())]
    assert all(isinstance(each, Manifest) for each in outcomes), outcomes


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def write(repository: Path) -> None:
        folder, origin = tmp_path_factory.mktemp("adapters"), zoo.checkpoint(BASE)
        folders = {name: write_adapter(folder / name, origin, at, **ADAPTERS[name]) for at, name in enumerate(ADAPTERS)}
        folders["head"] = write_head(folder / "head", origin, len(folders), labels=3)
        publish(folders, repository)

    source = [zoo.key(zoo.recipes.BY_NAME[BASE]), ADAPTERS, hash_file(Path(adapters.__file__)).sha256]
    published = cached("adapters", source, write)
    target = tmp_path_factory.mktemp("adapters") / "repository"
    subprocess.run(["cp", "-a", published, target], check=True)  # which keeps the hard links of shared files
    return target


@pytest.fixture(scope="module")
def client(served: ServeProcess) -> Iterator[Client]:
    with Client(served.ready["grpc_url"]) as opened:
        yield opened


def alone(repository: Path, name: str, texts: list[str] = TEXTS) -> Answers:
    """Return the labels and scores of an adapter that runs by itself in this process."""
    requests = [{"text_input": text, "top_k": len(LABELS)} for text in texts]
    answers = LocalModel.open(repository, name).infer_all(requests)
    return [list(zip(each["label"], each["score"], strict=True)) for each in answers]


def over_grpc(client: Client, name: str, texts: list[str] = TEXTS) -> Answers:
    answers = client.classify(name, texts, top_k=len(LABELS))
    return [[(each.label, each.score) for each in answer.predictions] for answer in answers]


def over_http(server: ServeProcess, name: str) -> Answers:
    """Return what Triton's own protocol answers."""
    inputs = [
        {"name": "text_input", "shape": [len(TEXTS), 1], "datatype": "BYTES", "data": TEXTS},
        {"name": "top_k", "shape": [len(TEXTS), 1], "datatype": "INT32", "data": [len(LABELS)] * len(TEXTS)},
    ]
    status, answer = post(f"{server.http_url}/v2/models/{name}/infer", {"inputs": inputs})
    assert status == 200, answer
    outputs = {each["name"]: each for each in answer["outputs"]}
    count = outputs["label"]["shape"][1]
    pairs = list(zip(outputs["label"]["data"], outputs["score"]["data"], strict=True))
    return [pairs[row : row + count] for row in range(0, len(pairs), count)]


def as_hugging_face(server: ServeProcess, name: str) -> Answers:
    status, answers = post(f"{server.http_url}/models/{name}", {"inputs": TEXTS})
    assert status == 200, answers
    return [[(each["label"], each["score"]) for each in answer] for answer in answers]


def test_each_name_answers_like_the_adapter_by_itself(
    repository: Path, served: ServeProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {name: alone(repository, name) for name in NAMES}
    for name in NAMES:
        assert over_grpc(client, name) == expected[name]
        assert over_http(served, name) == expected[name]
        assert as_hugging_face(served, name) == expected[name]
        assert main(["infer", name, TEXTS[0], "--top-k", "5", "--url", served.http_url, "--json"]) == 0
        [answer] = json.loads(capsys.readouterr().out)["results"]
        assert list(zip(answer["label"], answer["score"], strict=True)) == expected[name][0]
    assert {len(expected[name][0]) for name in NAMES} == {1, 2, 3, 5}
    assert {label for label, _ in expected["five"][0]} == set(LABELS)


def test_all_names_are_listed_and_others_are_not_found(served: ServeProcess) -> None:
    with urllib.request.urlopen(f"{served.http_url}/v1/models") as listed:
        assert [each["id"] for each in json.load(listed)["data"]] == served.ready["models"] == sorted(NAMES)
    status, answer = post(f"{served.http_url}/models/none", {"inputs": "x"})
    assert status == 404 and ", ".join(sorted(NAMES)) in answer["error"]


def test_mixed_requests_share_one_net_and_have_the_answers_of_each_adapter_by_itself(
    repository: Path, served: ServeProcess, client: Client
) -> None:
    requests = [(name, texts) for texts in [*([text] for text in TEXTS), TEXTS[:7]] for name in NAMES]
    expected = [alone(repository, *request) for request in requests]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(lambda request: over_grpc(client, *request), requests * 4)) == expected * 4
    assert shared_nets(served.server) == 1


def test_adapters_are_added_replaced_and_removed_while_others_answer(
    repository: Path, served: ServeProcess, client: Client, tmp_path: Path
) -> None:
    origin, texts = zoo.checkpoint(BASE), TEXTS[:1]  # one request for each call
    former = {name: repr(over_grpc(client, name, texts)) for name in NAMES}
    publish({"late": write_adapter(tmp_path / "late", origin, 50, labels=4)}, repository)
    publish({"two": write_adapter(tmp_path / "two", origin, 51)}, repository, force=True)
    calls = [lambda client, name=name: repr(over_grpc(client, name, texts)) for name in NAMES]
    seconds = {}

    def run(*words: str) -> None:
        began = time.monotonic()
        assert main([*words, "--repository", str(repository)]) == 0
        seconds[" ".join(words)] = round(time.monotonic() - began, 2)

    with calling(served.ready["grpc_url"], calls) as outcomes:
        wait_until(lambda: len(outcomes) == len(NAMES))
        run("reload", "late")
        assert over_grpc(client, "late") == alone(repository, "late")
        assert repr(over_grpc(client, "two", texts)) == former["two"]
        run("reload", "two")
        assert over_grpc(client, "two") == alone(repository, "two")
        run("remove", "late", "--force")
        assert post(f"{served.http_url}/models/late", {"inputs": "x"})[0] == 404
        answered = sum(outcomes.values())
        wait_until(lambda: sum(outcomes.values()) > answered + 20)
    two = repr(over_grpc(client, "two", texts))
    assert two != former["two"] and set(outcomes) == {*former.values(), two}
    assert shared_nets(served.server) == 1 and served.words.count("served as it is published now") == 2
    print(seconds)
    assert max(seconds.values()) < RELOAD_SECONDS


def test_commands_take_adapters_as_other_models(
    repository: Path, served: ServeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["verify", "two"],
        ["verify", "five", "--url", served.http_url],
        ["lint"],
        ["list"],
    ):
        assert main([*words, "--repository", str(repository)]) == 0, capsys.readouterr()
    printed = capsys.readouterr().out
    assert "two answers like its checkpoint" in printed and "0 errors, 0 warnings" in printed
    assert all(f"\n{name} " in printed for name in NAMES)


def forge(repository: Path, origin: str, name: str) -> None:
    """Publish a copy of `origin` as `name`: with weights of another backbone, the same `shared_net`, and all hashes."""
    manifest = copy_renamed(repository, origin, repository, name)
    weights = repository / f"{name}_net/1/model.int8.onnx.data"
    weights.write_bytes(bytes(255 - byte for byte in weights.read_bytes()))
    seal(repository, manifest)


def test_a_model_that_names_the_net_of_others_but_has_another_is_refused(
    repository: Path, served: ServeProcess, client: Client
) -> None:
    forge(repository, "five", "a-forged")  # the first by name opens the net
    try:
        with pytest.raises(ModelCorrupt, match="a-forged"):
            check_published(repository, ["a-forged"], print)
        left_out = read_settled(lambda: damaged_models(repository, print), lambda: repository.glob("a-forged*"))
        assert left_out == ["a-forged"]
        with pytest.raises(ModelCorrupt, match="a-forged"):
            open_deployment(repository, ["a-forged"])
        assert main(["reload", "a-forged", "--repository", str(repository)]) == ServerError("").exit_code
        assert post(f"{served.http_url}/models/a-forged", {"inputs": "x"})[0] == 404
        assert over_grpc(client, "five") == alone(repository, "five")
    finally:
        for folder in repository.glob("a-forged*"):
            shutil.rmtree(folder)


def test_a_deployment_has_the_shared_files_once(repository: Path, tmp_path: Path) -> None:
    copy_models(open_deployment(repository, list(NAMES)), tmp_path / "models")
    files = [tmp_path / f"models/{name}_net/1/model.int8.onnx.data" for name in NAMES]
    assert {each.stat().st_ino for each in files} == {files[0].stat().st_ino}
    assert files[0].stat().st_nlink == len(NAMES)
    for name in NAMES:
        verify_files(read_manifest(tmp_path / "models" / name / MANIFEST_FILE), tmp_path / "models")


def test_python_steps_have_the_same_answers(repository: Path) -> None:
    names = ["five", "head"]
    with started(repository, steps="python", models=names) as server, Client(server.grpc_url) as client:
        assert shared_nets(server.pid) == 0
        for name in names:
            assert over_grpc(client, name) == alone(repository, name)


def test_idle_adapters_give_the_net_back_and_load_it_again(repository: Path) -> None:
    expected = {name: alone(repository, name) for name in NAMES}
    with serving(repository, "--idle-unload", "1", "--memory-budget", "200MB") as server:
        for _ in range(2):
            for name in NAMES:
                assert as_hugging_face(server, name) == expected[name]
            wait_until(lambda: shared_nets(server.server) == 0)
