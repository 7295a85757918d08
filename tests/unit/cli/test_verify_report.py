"""`hfx verify --report`: the facts of the manifest, the figures of the run, and the page that shows all of them."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.cli.verify_report import UNMEASURED, UNRECORDED
from hfx.manifest import Manifest, model_sha256, read_manifest, write_manifest
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint, export_zoo

pytestmark = pytest.mark.slow

MODELS = {"sentiment": "sentiment-distilbert", "stories": "stories-gpt2"}
LABELS = {0: "<b>bad</b>", 1: '"good" & <script>alert(1)</script>'}
REFUSED = ("report.txt", "report", "missing/report.html", "repository/m/hfx.json", "dev.json", "folder.json")
RUN = ("at", "seconds_of_this_run")  # differ between two runs


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    for name, checkpoint in MODELS.items():
        export_zoo(checkpoint, folder, name, "int8")
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of dev.csv and of a repository with the model m, whose labels are HTML."""
    folder = tmp_path_factory.mktemp("labelled")
    with (folder / "dev.csv").open("w", newline="", encoding="utf-8") as opened:
        rows = [("text", "label"), ("the cat sat", LABELS[0]), ("the dog ran", LABELS[1]), ("a cat", LABELS[0])]
        csv.writer(opened).writerows(rows)
    tiny_checkpoints.save(folder / "tiny", tiny_checkpoints.bert(id2label=LABELS))
    options: Any = {"max_length": 16, "max_batch_size": 4, "verify_data": (folder / "dev.csv",)}
    export_checkpoint(folder / "tiny", folder / "repository", name="m", **options)
    return folder


def manifest_of(repository: Path, name: str) -> Manifest:
    return read_manifest(repository / name / "hfx.json")


def verify(repository: Path, name: str, report: Path, *options: str) -> int:
    return main(["verify", name, "--repository", str(repository), "--report", str(report), *options])


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


class Cells(HTMLParser):
    """The texts of the heading, of paragraphs and of table cells of a page, without the footer."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self._open = tag in ("td", "p")
        self.texts += [""] * self._open

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[-1] += data


def leaves(value: Any) -> Iterator[str]:
    """Yield the values of a report in its order, each as the page shows it."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from ["RUN"] if name in RUN else leaves(member)
    elif isinstance(value, list) and isinstance(value[0], dict):
        for member in value:
            yield from leaves(member)
    else:
        yield ", ".join(value) if isinstance(value, list) else str(value)


def rounded(value: Any) -> Any:
    """Return figures as a report has them: six digits, and no members that are None."""
    if isinstance(value, dict):
        return {name: rounded(member) for name, member in value.items() if member is not None}
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize("name", MODELS)
def test_a_report_has_the_facts_of_the_manifest_and_the_figures_of_the_run(
    name: str, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "older.json").write_text("old")
    (path := tmp_path / "report.json").symlink_to("older.json")
    assert verify(repository, name, path) == 0
    assert {file.name: file.is_symlink() for file in tmp_path.iterdir()} == {"older.json": False, "report.json": True}
    report, manifest = read(path), manifest_of(repository, name)
    choices: Any = manifest.choices
    assert report["result"] == "passed"
    assert report["model"]["model_sha256"] == model_sha256(manifest.files)
    assert report["model"]["architecture"] == choices["architecture"]
    assert {file["path"]: (file["bytes"], file["sha256"]) for file in report["files"]} == {
        file: (entry.size, entry.sha256) for file, entry in manifest.files.items()
    }
    assert {file["precision"] for file in report["files"] if ".onnx" in file["path"]} == {"int8"}
    assert report["figures_at_export"]["cpu"] == rounded(manifest.parity["cpu"])
    assert report["compared"]["texts"] == choices["texts"]
    assert report["times"]["seconds_of_export_steps"] == choices["seconds"]
    requests = report["figures_of_this_run"]["requests"]
    by_length = report["agreement_by_length"]
    assert sum(row["requests"] for row in by_length) == requests == report["compared"]["recorded_requests"]
    share = report["figures_of_this_run"]["agreement" if name == "sentiment" else "same"]
    assert sum(row["equal"] for row in by_length) == pytest.approx(share * requests, abs=0.01)
    assert {row["tokens"] for row in by_length} >= {"up to 16", "17 to 64"}
    alone = report["batch_independence"]
    assert alone["equal_answers"] == alone["requests_also_run_alone"] == (requests if name == "sentiment" else 8)
    assert report["kernels"]["native_library_of_the_model"] == "the same"
    assert report["labelled_data_of_this_run"] == UNMEASURED


@pytest.mark.parametrize("name", MODELS)
def test_the_page_shows_each_value_of_the_json_in_its_order(name: str, repository: Path, tmp_path: Path) -> None:
    assert verify(repository, name, tmp_path / "report.json") == 0
    assert verify(repository, name, tmp_path / "report.html") == 0
    report = read(tmp_path / "report.json")
    cells = Cells((tmp_path / "report.html").read_text(encoding="utf-8"))
    known = list(leaves({key: report[key] for key in report if key not in ("result", "format")}))
    assert len(cells.texts) == len(known)
    shown = ["RUN" if value == "RUN" else text for text, value in zip(cells.texts, known, strict=True)]
    assert shown == known
    assert not cells.tags & {"script", "img", "iframe"}


def test_a_changed_file_is_a_failed_report(repository: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(repository, tmp_path / "copy"))
    net = copy / "sentiment_net/1/model.int8.onnx.data"
    content = bytearray(net.read_bytes())
    content[len(content) // 2] ^= 1
    net.write_bytes(content)
    assert verify(copy, "sentiment", tmp_path / "report.html") == 4
    assert verify(copy, "sentiment", tmp_path / "report.json") == 4
    report = read(tmp_path / "report.json")
    assert report["result"] == "failed" and net.name in report["failure"]
    assert report["figures_of_this_run"] == report["batch_independence"] == UNMEASURED
    assert report["failure"] in Cells((tmp_path / "report.html").read_text(encoding="utf-8")).texts


def test_a_failed_verification_is_reported_with_its_figures(labelled: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "report.json", str(labelled / "dev.csv")
    assert verify(labelled / "repository", "m", path, "--data", data, "--min", "1.01") == 4
    report = read(path)
    assert report["result"] == "failed" and "--min" in report["failure"]
    assert report["labelled_data_of_this_run"]["value"] <= 1
    assert report["figures_of_this_run"]["agreement"] > 0.9


def test_labelled_data_has_calibration_and_what_the_export_measured(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = labelled / "dev.csv"
    assert verify(labelled / "repository", "m", tmp_path / "report.json", "--data", str(data), "--json") == 0
    at_export: Any = manifest_of(labelled / "repository", "m").parity["data"]
    figures = json.loads(capsys.readouterr().out)["data"]
    assert figures["at_export"] == at_export["dev.csv"]
    assert figures["calibration_error"] == at_export["dev.csv"]["calibration_error"]["cpu"]
    report = read(tmp_path / "report.json")
    assert report["labelled_data_at_export"] == rounded(at_export)
    assert report["labelled_data_of_this_run"] == rounded(figures)


def test_labels_are_escaped(labelled: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert verify(labelled / "repository", "m", path) == 0
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page and "<b>" not in page
    assert ", ".join(LABELS.values()) in Cells(page).texts


def test_what_an_older_export_did_not_record_is_named(repository: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(repository, tmp_path / "copy"))
    manifest = manifest_of(copy, "sentiment")
    cpu: Any = manifest.parity["cpu"]
    older: Any = {"cpu": {name: value for name, value in cpu.items() if name != "limits"}}
    write_manifest(replace(manifest, choices={}, parity=older), copy / "sentiment/hfx.json")
    assert verify(copy, "sentiment", tmp_path / "report.html") == 0
    assert verify(copy, "sentiment", tmp_path / "report.json") == 0
    report = read(tmp_path / "report.json")
    assert report["figures_at_export"]["cpu"]["limits"] == report["model"]["architecture"] == UNRECORDED
    assert report["compared"]["texts"] == report["times"]["seconds_of_export_steps"] == UNRECORDED


@pytest.mark.parametrize("place", REFUSED)
def test_a_report_that_can_not_be_written_is_refused_before_any_work(
    place: str, labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = labelled / "dev.json"
    data.write_text("[]")
    (labelled / "folder.json").mkdir(exist_ok=True)
    before = sorted(labelled.rglob("*"))
    assert verify(labelled / "repository", "m", labelled / place, "--data", str(data)) == 2
    assert "--report" in capsys.readouterr().err
    assert (sorted(labelled.rglob("*")), data.read_text()) == (before, "[]")
    manifest_of(labelled / "repository", "m")
