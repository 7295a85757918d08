"""Generators whose int8 engine the gate refuses: linears in a finer format, or the fp32 engine, or a refusal."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.cli.export_summary import summary
from hfx.errors import UsageError, VerificationFailed
from hfx.exporter import mixed_precision
from hfx.exporter.generation import gate, mixed
from hfx.exporter.mixed_precision import MOST_RUNS, SEARCH, read_search
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.local.generator import LocalGenerator
from hfx.manifest import Manifest, read_manifest
from tests.rigs.checkpoints import generator_checkpoints, outliers
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.machine.tiers import full

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("least_texts")]

NEEDS_NATIVE = pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
# What int8 without the bad linear may change: 1.1 % of tokens with weights up to 63; with it, 22 % change.
INT8_DROP = 0.03
OWN_COMMAND = ["export", "checkpoint", "--name", "m", "--precision", "int8", "--device", "cpu"]


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept mixed engines of any speed: the linears of tiny models take hardly any of the time."""
    monkeypatch.setattr(mixed_precision, "LEAST_SPEEDUP", 0.0)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many linears each engine of a search keeps."""
    return count_attempts(monkeypatch)


def count_attempts(patch: pytest.MonkeyPatch) -> list[int]:
    attempts, attempt = list[int](), gate.Gate.attempt

    def counting(self: gate.Gate, device: Any, runtimes: Any, formats: Any, whole: bool) -> gate.Comparison | None:
        if len(formats.kept) not in attempts:  # the same engine's figures are measured in two steps
            attempts.append(len(formats.kept))
        return attempt(self, device, runtimes, formats, whole)

    patch.setattr(gate.Gate, "attempt", counting)
    return attempts


def export(folder: Path, **options: Any) -> Manifest:
    return export_checkpoint(
        folder / "checkpoint", folder / "repository", **{"name": "m", "precision": "int8", **options}
    )


@dataclass(frozen=True)
class Searched:
    """A model that `hfx export` has published in `folder`, after a search with this number of `attempts`."""

    folder: Path
    attempts: int
    checkpoint: Any  # what the function that saved the checkpoint returns

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder / "model_repository/m/hfx.json")


def searched(folder: Path, checkpoint: Any, *options: str) -> Searched:
    """Export FOLDER/checkpoint from the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed_precision, "LEAST_SPEEDUP", 0.0)
        patch.chdir(folder)
        command = [*OWN_COMMAND, *options]
        patch.setattr("sys.argv", ["hfx", *command])
        attempts = count_attempts(patch)
        assert main(command) == 0
    return Searched(folder, len(attempts), checkpoint)


@pytest.fixture(scope="module")
def published_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Searched]:
    """Publish each model when a test first needs it: of a bad linear, by runtime, or without a good linear."""

    @cache
    def publish(runtime: str) -> Searched:
        folder = tmp_path_factory.mktemp("model")
        if runtime == "fp32":
            return searched(folder, outliers.only_bad_linears(folder / "checkpoint"))
        bad = outliers.one_bad_linear(folder / "checkpoint", 1)
        return searched(folder, bad, "--cpu-runtime", runtime, "--max-drop", str(INT8_DROP))

    return publish


@pytest.mark.parametrize("runtime", [pytest.param("auto", marks=NEEDS_NATIVE), full("onnxruntime")])
def test_exactly_the_linear_with_outliers_stays_in_float32(
    runtime: str, published_models: Callable[[str], Searched]
) -> None:
    with_a_bad_linear = published_models(runtime)
    manifest, bad = with_a_bad_linear.manifest, with_a_bad_linear.checkpoint
    search, figures = read_search(manifest), manifest.parity["cpu"]
    assert search is not None and search.kept == (bad,)
    assert (search.precision, search.why_fp32, next(iter(search.ranking))) == ("int8", "", bad)
    assert "token agreement" in search.reason and search.speedup
    assert search.gate_runs == with_a_bad_linear.attempts <= MOST_RUNS
    assert manifest.precision.cpu == figures["precision"] == "int8" and figures["agreement"] >= 1 - INT8_DROP
    assert figures["greedy"]["batch_variants"] == 0
    line = next(line for line in summary(manifest, with_a_bad_linear.folder) if "products" in line)
    assert f"int8 for {search.products - 1} of {search.products} products, 1 kept in fp32 (layer 1 attn.c_proj)" in line
    repository = with_a_bad_linear.folder / "model_repository"
    with LocalGenerator.open(repository, "m") as model:
        assert model.infer_all([{"text_input": "a cat", "max_tokens": 5}])
    assert main(["verify", "m", "--repository", str(repository)]) == 0


def test_an_engine_whose_whole_texts_are_refused_gives_way_to_one_with_more_linears_in_float32(
    tmp_path: Path, any_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, tried = gate.Gate.attempt, []

    def refusing(self: gate.Gate, device: Any, runtimes: Any, formats: Any, whole: bool) -> gate.Comparison | None:
        tried.append((len(formats.kept), whole))
        if whole and len(formats.kept) < 2:
            return None
        return attempt(self, device, runtimes, formats, whole)

    monkeypatch.setattr(gate.Gate, "attempt", refusing)
    bad = outliers.one_bad_linear(tmp_path / "checkpoint", 1)
    manifest = export(tmp_path, max_drop=INT8_DROP)
    search = read_search(manifest)
    assert search is not None and search.precision == "int8" and len(search.kept) == 2 and search.kept[0] == bad
    assert tried.count((1, True)) > 1  # what the next tokens found, then the search by whole texts
    assert search.gate_runs == len(tried) - 1
    assert manifest.parity["cpu"]["greedy"]["batch_variants"] == 0


def test_a_generator_without_a_good_linear_is_published_in_fp32(published_models: Callable[[str], Searched]) -> None:
    without_a_good_linear = published_models("fp32")
    manifest, count = without_a_good_linear.manifest, without_a_good_linear.checkpoint
    search = read_search(manifest)
    assert search is not None and (search.precision, search.kept, search.products) == ("fp32", (), count)
    assert search.gate_runs == without_a_good_linear.attempts == MOST_RUNS
    assert manifest.precision.cpu == manifest.parity["cpu"]["precision"] == "fp32"
    reason = f"fp32: no file with some of the {count} products in int8 passed the gate (4 tried)"
    assert any(reason in line for line in summary(manifest, without_a_good_linear.folder))
    assert not (without_a_good_linear.folder / "model_repository/m_stream/1/exact").exists()


def test_a_mixed_engine_that_is_hardly_faster_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "LEAST_SPEEDUP", 1000.0)
    bad = outliers.one_bad_linear(tmp_path / "checkpoint", 0)
    search = read_search(export(tmp_path, max_drop=INT8_DROP))
    assert search is not None and (search.precision, search.kept) == ("fp32", (bad,))
    assert "(layer 0 attn.c_proj)" in search.why_fp32


def test_the_search_obeys_the_metric_on_the_users_data(
    tmp_path: Path, any_speed: None, attempts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's own limits would pass any engine here."""
    monkeypatch.setattr(gate, "failures", lambda figures, limits: [])
    bad = outliers.one_bad_linear(tmp_path / "checkpoint", 1)
    texts = ["Once upon a time", "The little dog", "Anna was happy because", "In the garden there was a"]
    with (tmp_path / "own.csv").open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("text", "target"), *((text, continued(tmp_path, text)) for text in texts)])
    drop = 0.3  # a changed token may change a whole text; with the bad linear, ROUGE falls by more than 0.6
    manifest = export(tmp_path, verify_data=(tmp_path / "own.csv",), cpu_runtime="onnxruntime", max_drop=drop)
    search = read_search(manifest)
    assert search is not None and search.kept == (bad,) and search.gate_runs == len(attempts)
    assert "rouge on own.csv falls from" in search.reason
    figures = manifest.parity["data"]["own.csv"]
    assert figures["cpu"] >= figures["torch"] - drop and figures["rows"] == len(texts)


def continued(folder: Path, text: str) -> str:
    """Return the checkpoint's own continuation of a text in torch."""
    from transformers import pipeline

    generator = pipeline("text-generation", model=str(folder / "checkpoint"), device="cpu")
    return str(generator(text, max_new_tokens=40, do_sample=False, return_full_text=False)[0]["generated_text"])


def test_a_strict_export_of_a_generator_is_refused(tmp_path: Path, attempts: list[int]) -> None:
    outliers.one_bad_linear(tmp_path / "checkpoint", 1)
    with pytest.raises(VerificationFailed, match="The int8 engine for CPU"):
        export(tmp_path, strict=True)
    assert attempts == [] and not (tmp_path / "repository" / "m").exists()


def test_strict_is_for_generators_in_integers(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(generator_checkpoints.save(tmp_path / "gpt2", "gpt2", {})))
    with pytest.raises(UsageError, match="--strict"):
        make_plan(checkpoint, ExportOptions(strict=True))
    assert not make_plan(checkpoint, ExportOptions(strict=True, precision="int4")).searches("cpu")


@pytest.mark.parametrize("runtime", ["auto", "fp32"])
def test_the_same_export_again_searches_for_nothing(
    runtime: str,
    published_models: Callable[[str], Searched],
    any_speed: None,
    monkeypatch: pytest.MonkeyPatch,
    attempts: list[int],
) -> None:
    export = published_models(runtime)
    attempts.clear()
    monkeypatch.chdir(export.folder)
    monkeypatch.delattr(mixed, "rank_linears")
    first = export.manifest
    assert main(["export", "--again", "m"]) == 0
    again = export.manifest
    assert attempts == []
    assert again.precision == first.precision and again.choices[SEARCH] == first.choices[SEARCH]
    stream = {name for name in first.files if name.startswith("m_stream/1/cpu")}
    assert stream and all(again.files[name] == first.files[name] for name in stream)
