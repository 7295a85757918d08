"""`hfx serve --shadow`: a real server's answers compared with a reference, by Triton's protocol and a dialect."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest

from hfx.manifest import read_manifest
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.clients.dialect_calls import call
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.renamed import seal
from tests.rigs.servers.serve_process import SECONDS, ServeProcess, serving

pytestmark = pytest.mark.triton
TEXTS = ("a lovely garden", "an awful film", "it rained", "we liked it")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8", "onnxruntime")
    return folder


def parity(server: ServeProcess) -> dict[str, float]:
    """Return the samples of `hfx_parity_*` by verdict, reason or kind of limit."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=SECONDS) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("hfx_parity_")]
    return {line.split('"')[-2]: float(line.split()[-1]) for line in lines}


def ask(server: ServeProcess) -> None:
    for text in TEXTS:
        tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
        assert call(server, "/v2/models/sentiment/infer", {"inputs": [tensor]})[0] == 200
        assert call(server, "/predict", {"inputs": text}, headers={"Accept-Encoding": "identity"})[0] == 200


def test_equal_answers_are_counted_as_the_same(sound: Path) -> None:
    with serving(sound, "--shadow", "1") as server:
        ask(server)
        wait_until(lambda: parity(server).get("same") == 2 * len(TEXTS))
        found = parity(server)
        assert (found["differs"], found["tie"], found["agreement"]) == (0, 0, 1)


def test_a_model_with_swapped_labels_is_found(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "sentiment_postprocess/1/settings.json"
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps({**values, "labels": values["labels"][::-1]}))
    seal(tmp_path, read_manifest(tmp_path / "sentiment/hfx.json"))
    with serving(tmp_path, "--steps", "python", "--shadow", "1", "--shadow-repository", str(sound)) as server:
        ask(server)
        wait_until(lambda: sum(parity(server).get(each, 0) for each in ("same", "tie", "differs")) == 2 * len(TEXTS))
        assert parity(server)["differs"] >= len(TEXTS), parity(server)
        assert parity(server)["agreement"] == 0.95
