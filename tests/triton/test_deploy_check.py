"""`hfx deploy check URL` compares a server's answers with those of the checkpoints of its models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from tests.rigs.clients.dialect_calls import API_KEY, ENCODERS, RANKER
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton

FEW = 12

# A pod has the packages that serve, and not those that export.
WITHOUT_EXPORTER = """
import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "onnx", "onnx_ir", "onnxscript"))
from hfx.cli import main
sys.exit(main())
"""


def check(server: ServeProcess, repository: Path, *names: str) -> subprocess.CompletedProcess[str]:
    words = ["deploy", "check", server.http_url, *names, "--repository", str(repository), "--wait", "30", "--json"]
    words += ["--header", f"Authorization: Bearer {API_KEY}"]
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXPORTER, *words],
        capture_output=True,
        text=True,
        timeout=120,
    )


def check_here(
    capsys: pytest.CaptureFixture[str], url: str, repository: Path, *words: str, key: str = API_KEY
) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit code, the figures of each model, and the stderr of a check in this process."""
    header = f"Authorization: Bearer {key}"
    code = main(["deploy", "check", url, "--repository", str(repository), "--header", header, "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out).get("models", []), err


@pytest.fixture(scope="module")
def few(many_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models as the server has them, each with a few of its recorded answers."""
    folder = tmp_path_factory.mktemp("few")
    for manifest in many_tasks.glob("*/hfx.json"):
        for member in (manifest.parent.name, f"{manifest.parent.name}_postprocess"):
            if (many_tasks / member).is_dir():
                shutil.copytree(many_tasks / member, folder / member)
        reference = folder / manifest.parent.name / "reference.json"
        recorded = json.loads(reference.read_text())
        reference.write_text(json.dumps({**recorded, "rows": recorded["rows"][:FEW]}), encoding="utf-8")
    return folder


def test_a_server_of_the_published_models_passes(dialects: ServeProcess, many_tasks: Path) -> None:
    done = check(dialects, many_tasks, "sentiment-fp32", "stories")
    assert done.returncode == 0, done.stderr
    models = {each["name"]: each for each in json.loads(done.stdout)["models"]}
    assert models.keys() == {"sentiment-fp32", "stories"}
    assert models["sentiment-fp32"]["agreement"] >= 0.995
    assert models["stories"]["same"] >= models["stories"]["at_export"] - 0.01


@pytest.mark.parametrize("through", ["v2", "tei"])
def test_a_server_of_another_checkpoint_fails_with_the_first_answers_that_differ(
    dialects: ServeProcess, few: Path, tmp_path: Path, through: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The checkpoint behind this copy answered with the two labels exchanged.
    for member in ("", "_postprocess"):
        shutil.copytree(few / f"sentiment-fp32{member}", tmp_path / f"sentiment-fp32{member}")
    reference = tmp_path / "sentiment-fp32/reference.json"
    recorded = json.loads(reference.read_text())
    for row in recorded["rows"]:
        row["answer"]["label"].reverse()
    reference.write_text(json.dumps(recorded), encoding="utf-8")
    code, [model], err = check_here(capsys, dialects.http_url, tmp_path, "--through", through)
    assert code == 4, err
    first = recorded["rows"][0]
    assert "agreement 0.0" in model["error"]
    assert "text_input" in model["error"] and first["answer"]["label"][0] in model["error"]


@pytest.mark.parametrize(
    ("dialect", "models"),
    [
        ("openai", ("similar-int8", "stories")),
        ("huggingface", (*ENCODERS, RANKER, "summaries")),
        ("tei", ("sentiment-fp32", "similar-int8", RANKER)),
        ("mlserver", (*ENCODERS, "stories")),
    ],
)
def test_each_dialect_gives_the_answers_of_the_checkpoints(
    dialects: ServeProcess, few: Path, dialect: str, models: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    # The first FEW texts of stories are harder than all: 7 of 12 are equal, of all three quarters.
    options = ("--through", dialect, "--max-drop", "0.2")
    code, figures, err = check_here(capsys, dialects.http_url, few, *models, *options)
    assert code == 0, err
    assert [each["name"] for each in figures] == list(models)
    for each in figures:
        assert each["requests"] == FEW
        assert each.get("not_compared", []) == (["output_log_probs"] if "same" in each else [])


def test_a_dialect_without_the_task_and_a_grpc_port_are_usage_errors(
    dialects: ServeProcess, many_tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["stories", "similar-int8"]
    code, figures, err = check_here(capsys, dialects.http_url, many_tasks, *names, "--through", "tei")
    assert (code, figures) == (2, [])
    assert "stories (text-generation)" in err and "similar-int8" in err
    code, _, err = check_here(capsys, dialects.ready["grpc_url"], many_tasks, "similar-int8", "--through", "tei")
    assert code == 2 and "gRPC" in err


def test_a_wrong_key_or_an_unserved_model_fails_the_check(
    dialects: ServeProcess, few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = check_here(capsys, dialects.http_url, few, "sentiment-fp32", key="another")
    assert code == 5 and "token" in err
    for member in ("", "_postprocess"):
        shutil.copytree(few / f"sentiment-fp32{member}", tmp_path / f"unserved{member}")
    manifest = tmp_path / "unserved/hfx.json"
    manifest.write_text(manifest.read_text().replace('"sentiment-fp32', '"unserved'), encoding="utf-8")
    for through in ("v2", "huggingface"):
        code, _, err = check_here(capsys, dialects.http_url, tmp_path, "unserved", "--through", through)
        assert code == 3 and "unserved" in err
