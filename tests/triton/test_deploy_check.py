"""`hfx deploy check URL`: what a server answers against what the checkpoints of its models answered."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.manifest import read_manifest
from tests.triton.dialect_calls import API_KEY
from tests.triton.serve_process import ServeProcess

pytestmark = pytest.mark.triton

# A pod has what serves, and not what exports.
WITHOUT_EXPORTER = """
import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "onnx", "onnx_ir", "onnxscript"))
from hfx.cli import main
sys.exit(main())
"""


def check(server: ServeProcess, repository: Path, *names: str, key: str = API_KEY) -> subprocess.CompletedProcess[str]:
    words = ["deploy", "check", server.http_url, *names, "--repository", str(repository), "--wait", "30", "--json"]
    words += ["--header", f"Authorization: Bearer {key}"]
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXPORTER, *words],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_server_of_the_published_models_passes(dialects: ServeProcess, many_tasks: Path) -> None:
    done = check(dialects, many_tasks, "sentiment-fp32", "entities-fp32", "stories")
    assert done.returncode == 0, done.stderr
    models = {each["name"]: each for each in json.loads(done.stdout)["models"]}
    assert models.keys() == {"sentiment-fp32", "entities-fp32", "stories"}
    assert models["sentiment-fp32"]["agreement"] >= 0.995
    assert models["stories"]["same"] >= models["stories"]["at_export"] - 0.01


def test_a_server_of_another_checkpoint_fails_with_the_first_answers_that_differ(
    dialects: ServeProcess, many_tasks: Path, tmp_path: Path
) -> None:
    # The checkpoint behind this copy answered with the two labels exchanged.
    for folder in read_manifest(many_tasks / "sentiment-fp32/hfx.json").folders:
        shutil.copytree(many_tasks / folder, tmp_path / folder)
    reference = tmp_path / "sentiment-fp32/reference.json"
    recorded = json.loads(reference.read_text())
    for row in recorded["rows"]:
        row["answer"]["label"].reverse()
    reference.write_text(json.dumps(recorded), encoding="utf-8")
    done = check(dialects, tmp_path)
    assert done.returncode == 4, done.stderr
    [model] = json.loads(done.stdout)["models"]
    first = recorded["rows"][0]
    assert "agreement 0.0" in model["error"]
    assert "text_input" in model["error"] and first["answer"]["label"][0] in model["error"]


def test_a_server_without_the_key_or_the_model_is_no_pass(
    dialects: ServeProcess, many_tasks: Path, repository: Path
) -> None:
    done = check(dialects, many_tasks, "sentiment-fp32", key="another")
    assert done.returncode == 5 and "token" in done.stderr
    done = check(dialects, repository, "topics-fp32")
    assert done.returncode == 5 and "topics-fp32" in done.stderr
