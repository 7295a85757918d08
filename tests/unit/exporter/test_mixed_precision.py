"""Exports whose int8 file the gate refuses: products that stay in float32, or the fp32 file, or a refusal."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from hfx import native
from hfx.cli import main
from hfx.cli.export_summary import details, summary
from hfx.errors import ModelCorrupt, UsageError, VerificationFailed
from hfx.exporter import mixed_precision
from hfx.exporter.encoder import gate, mixed
from hfx.exporter.mixed_precision import MOST_RUNS, SEARCH, Search, read_search
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.runtime import CpuChoice, Runtime, Timer
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.manifest import Manifest, read_manifest
from tests.rigs.checkpoints import outliers, tiny_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.machine.tiers import full
from tests.unit.exporter.test_encoder_linears import kinds

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

NEEDS_NATIVE = pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
# ONNX Runtime writes most of the files below.
RUNTIMES = [pytest.param("native", marks=NEEDS_NATIVE), full("onnxruntime")]
OWN_COMMAND = ["export", "checkpoint", "--name", "m", "--quantize", "--device", "cpu", "--cpu-runtime", "onnxruntime"]


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept mixed files of any speed: the products of tiny models take hardly any of the time."""
    monkeypatch.setattr(mixed_precision, "LEAST_SPEEDUP", 0.0)


@pytest.fixture
def gate_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the kind of each model that the gate measures."""
    measured, measure = list[str](), gate.measure

    def counting(model: LocalModel, *others: Any) -> gate.Figures:
        measured.append(model.kind)
        return measure(model, *others)

    monkeypatch.setattr(gate, "measure", counting)
    return measured


def export(folder: Path, **options: Any) -> Manifest:
    chosen = {"name": "m", "precision": "int8", **options}
    return export_checkpoint(folder / "checkpoint", folder / "repository", **chosen)


def net_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "repository" / "m_net" / "1").iterdir()}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exactly_the_product_with_outliers_stays_in_float32(
    runtime: str, tmp_path: Path, any_speed: None, gate_runs: list[str]
) -> None:
    bad = outliers.one_bad_product(tmp_path / "checkpoint", 1)
    manifest = export(tmp_path, cpu_runtime=runtime)
    search = read_search(manifest)
    assert search is not None and search.kept == (bad,)
    assert (search.precision, search.products, search.why_fp32) == ("int8", outliers.PRODUCTS, "")
    assert "agreement" in search.reason and next(iter(search.ranking)) == bad and search.speedup
    assert len(gate_runs) - 1 == search.gate_runs <= MOST_RUNS
    assert manifest.precision.cpu == "int8" and manifest.parity["cpu"]["precision"] == "int8"
    assert manifest.parity["cpu"]["agreement"] > 0.95 and manifest.parity["cpu"]["batch_delta"] == 0
    assert manifest.choices["int8_weights"] == 12  # of 13
    assert manifest.choices["cpu_runtime"]["requested"] == manifest.choices["cpu_runtime"]["runtime"] == runtime
    assert {name for name in net_files(tmp_path) if not name.endswith(".so")} == {
        "model.int8.onnx",
        "model.int8.onnx.data",
    }
    graph = onnx.load(tmp_path / "repository/m_net/1/model.int8.onnx", load_external_data=False)
    products = [op for op in kinds(graph).elements() if op.startswith("FloatLinear")]
    assert len(products) == 2  # and the classifier
    line = "int8 for 8 of 9 products, 1 kept in fp32 (layer 1 attention.out_lin), "
    assert any(line in each for each in summary(manifest, tmp_path))
    assert any(f"alone: {bad} " in each for each in details(manifest))
    assert main(["verify", "m", "--repository", str(tmp_path / "repository")]) == 0


def test_a_model_without_a_good_product_is_published_in_fp32_with_the_reason(
    tmp_path: Path, any_speed: None, gate_runs: list[str]
) -> None:
    outliers.only_bad_products(tmp_path / "checkpoint")
    manifest = export(tmp_path, cpu_runtime="auto")
    search = read_search(manifest)
    assert search is not None and search.precision == "fp32" and search.kept == ()
    assert search.gate_runs == MOST_RUNS and len(gate_runs) == 1 + MOST_RUNS + 1  # int8, mixed files, fp32
    assert manifest.precision.cpu == manifest.parity["cpu"]["precision"] == "fp32"
    assert manifest.choices["cpu_math"] == "fp32" and "int8_weights" not in manifest.choices
    assert net_files(tmp_path) >= {"model.onnx", "model.onnx.data"}
    reason = "fp32: no file with some of the 9 products in int8 passed the gate (4 tried)"
    assert any(reason in line for line in summary(manifest, tmp_path))
    assert main(["verify", "m", "--repository", str(tmp_path / "repository")]) == 0


@NEEDS_NATIVE
def test_native_operators_that_the_user_names_compute_the_fp32_file_too(tmp_path: Path, any_speed: None) -> None:
    outliers.only_bad_products(tmp_path / "checkpoint")
    manifest = export(tmp_path, cpu_runtime="native")
    assert (manifest.precision.cpu, manifest.choices["cpu_runtime"]["runtime"]) == ("fp32", "native")
    assert {"model.onnx", native.library().name} < net_files(tmp_path)


@NEEDS_NATIVE
@pytest.mark.parametrize(("mixed_runtime", "exact_runtime"), [("native", "onnxruntime"), ("onnxruntime", "native")])
def test_the_files_of_a_search_may_have_other_runtimes(
    mixed_runtime: Runtime, exact_runtime: Runtime, tmp_path: Path, any_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Timer.choose

    def choosing(timer: Timer, candidates: Mapping[Runtime, Any]) -> CpuChoice:
        is_exact = {each.variant.precision for each in candidates.values()} == {"fp32"}
        return replace(choose(timer, candidates), runtime=exact_runtime if is_exact else mixed_runtime)

    monkeypatch.setattr(Timer, "choose", choosing)
    bad = outliers.one_bad_product(tmp_path / "checkpoint", 1)
    manifest = export(tmp_path, cpu_runtime="auto")
    search = read_search(manifest)
    assert search is not None and search.kept == (bad,) and search.speedup
    assert manifest.choices["cpu_runtime"]["runtime"] == mixed_runtime
    libraries = {each.name for each in native.libraries().values()} if mixed_runtime == "native" else set[str]()
    assert net_files(tmp_path) == {"model.int8.onnx", "model.int8.onnx.data"} | libraries
    assert main(["verify", "m", "--repository", str(tmp_path / "repository")]) == 0


def test_a_mixed_file_that_is_hardly_faster_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "LEAST_SPEEDUP", 1000.0)
    bad = outliers.one_bad_product(tmp_path / "checkpoint", 0)
    manifest = export(tmp_path)
    search = read_search(manifest)
    assert search is not None and (search.precision, search.kept) == ("fp32", (bad,))
    assert "(layer 0 attention.out_lin)" in search.why_fp32
    assert manifest.precision.cpu == "fp32" and net_files(tmp_path) >= {"model.onnx", "model.onnx.data"}


def test_a_strict_export_is_refused(tmp_path: Path, gate_runs: list[str]) -> None:
    outliers.one_bad_product(tmp_path / "checkpoint", 1)
    with pytest.raises(VerificationFailed, match="The int8 file for CPU"):
        export(tmp_path, strict=True)
    assert len(gate_runs) == 1 and not (tmp_path / "repository" / "m").exists()


def test_strict_is_for_encoders_in_int8(tmp_path: Path) -> None:
    tiny_checkpoints.save(tmp_path / "checkpoint", tiny_checkpoints.bert())
    checkpoint = open_checkpoint(str(tmp_path / "checkpoint"))
    with pytest.raises(UsageError, match="--strict"):
        make_plan(checkpoint, ExportOptions(strict=True))
    assert not make_plan(checkpoint, ExportOptions(strict=True, quantize=True)).searches("cpu")


@pytest.mark.parametrize("kept", [True, full(False)])
def test_the_same_export_again_searches_for_nothing(
    kept: bool,
    tmp_path: Path,
    any_speed: None,
    monkeypatch: pytest.MonkeyPatch,
    gate_runs: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if kept:
        outliers.one_bad_product(tmp_path / "checkpoint", 1)
    else:
        outliers.only_bad_products(tmp_path / "checkpoint")
    monkeypatch.setattr("sys.argv", ["hfx", *OWN_COMMAND])
    assert main(OWN_COMMAND) == 0
    path = tmp_path / "model_repository/m/hfx.json"
    first = read_manifest(path)
    assert main([*OWN_COMMAND, "--strict", "--force"]) == 4
    monkeypatch.delattr(mixed, "rank")
    for _ in range(2):
        gate_runs.clear()
        assert main(["export", "--again", "m"]) == 0
        assert len(gate_runs) == 1
        again = read_manifest(path)
        assert again.files == first.files and again.precision == first.precision
        assert again.choices[SEARCH] == first.choices[SEARCH]
    assert ("kept in fp32" if kept else "fp32: ") in capsys.readouterr().out


def test_a_damaged_record_of_a_search_is_refused(tmp_path: Path) -> None:
    tiny_checkpoints.save(tmp_path / "checkpoint", tiny_checkpoints.bert())
    manifest = export(tmp_path, precision="fp32")
    assert read_search(manifest) is None
    for record in ({}, {"precision": "int3", "kept": []}, {"precision": "int8", "kept": [1]}, {"kept": 3}, "x"):
        damaged: Any = {**manifest.choices, SEARCH: record}
        with pytest.raises(ModelCorrupt, match="is damaged"):
            read_search(replace(manifest, choices=damaged))
    whole: Any = {SEARCH: json.loads(json.dumps(Search("int8", ("a",), ranking={"a": 1.0}).as_json()))}
    assert read_search(replace(manifest, choices=whole)) == Search("int8", ("a",), ranking={"a": 1.0})


def test_the_search_obeys_the_metric_on_the_users_data(
    tmp_path: Path, any_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's own texts would pass any file here."""
    anything = gate.Limits(agreement=0.0, drift=10.0, delta=None, batch_delta=0.0)
    monkeypatch.setitem(gate.LIMITS, "int8", anything)
    bad = outliers.one_bad_product(tmp_path / "checkpoint", 1)
    texts = ["a wonderful film", "an awful film", "great and moving", "terrible , boring and slow", "superb acting"]
    rows = [(text, label_of(tmp_path, text)) for text in (f"{a} . {b}" for a in texts for b in texts)]
    with (tmp_path / "own.csv").open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "label"), *rows])
    manifest = export(tmp_path, verify_data=(tmp_path / "own.csv",))
    search = read_search(manifest)
    assert search is not None and search.kept == (bad,) and "own.csv falls from 1.0000" in search.reason
    figures = manifest.parity["data"]["own.csv"]
    assert figures["torch"] == 1 and figures["cpu"] >= 0.99 and figures["rows"] == len(rows)


def label_of(folder: Path, text: str) -> str:
    """Return the checkpoint's own answer in torch."""
    from transformers import pipeline

    return str(pipeline("text-classification", model=str(folder / "checkpoint"), device="cpu")(text)[0]["label"])
