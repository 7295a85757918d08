"""Published models behind endpoints, with a usual scoring script and without a script."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.local.models import local_model
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.files.azure_scripts import ENDPOINT, Rig
from tests.rigs.machine.tiers import DATA, needs_data

pytestmark = pytest.mark.slow

SCRIPT = """
    import csv, os
    from contextlib import ExitStack
    from pathlib import Path
    from hfx.local.models import local_model
    csv.field_size_limit(1 << 24)
    def init():
        global model
        repository = Path(os.environ["AZUREML_MODEL_DIR"])
        model = ExitStack().enter_context(local_model(repository, "sentiment"))
    def run(mini_batch):
        results = []
        for path in mini_batch:
            with open(path, newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    answer = model.answer({"text_input": [row["text"]]})
                    results.append(f"{os.path.basename(path)},{answer['label'][0]},{answer['score'][0]}")
        return results
"""
SETTINGS = """
    model: {path: repository/sentiment}
    compute: azureml:cpu-cluster
    resources: {instance_count: 1}
    settings:
      max_concurrency_per_instance: 2
      mini_batch_size: 1
      output_action: append_row
      output_file_name: predictions.csv
      retry_settings: {max_retries: 3, timeout: 300}
      error_threshold: -1
      logging_level: info
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "repository"
    folder.mkdir()
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8")
    return folder


@pytest.fixture
def rig(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rig:
    (tmp_path / "repository").symlink_to(models)
    return Rig(tmp_path, capsys)


@needs_data
def test_a_script_reads_files_of_billsum_and_its_rows_come_in_order(rig: Rig, models: Path) -> None:
    csv.field_size_limit(1 << 24)
    with (DATA / "billsum" / "billsum-0.csv").open(newline="", encoding="utf-8") as source:
        bills = [row for _, row in zip(range(20), csv.DictReader(source), strict=False)]
    folder = rig.folder / "input"
    folder.mkdir()
    for number in range(5):
        with (folder / f"bills-{number}.csv").open("w", newline="", encoding="utf-8") as target:
            writer = csv.DictWriter(target, bills[0])
            writer.writeheader()
            writer.writerows(bills[4 * number : 4 * number + 4])
    rig.deploy(SCRIPT, yaml=SETTINGS)
    job = rig.wait(rig.invoke("--input", folder)["name"])
    assert (job["status"], job["mini_batches"], job["failed"]) == ("Completed", 5, 0), rig.log(job["name"])
    with local_model(models, "sentiment") as model:
        answers = [model.answer({"text_input": [bill["text"]]}) for bill in bills]
    expected = [
        f"bills-{number // 4}.csv,{answer['label'][0]},{answer['score'][0]}" for number, answer in enumerate(answers)
    ]
    written = (Path(job["output"]) / "predictions.csv").read_text(encoding="utf-8")
    assert written.splitlines() == expected


def test_a_model_without_a_script_scores_the_rows_of_a_column(rig: Rig, models: Path) -> None:
    (rig.folder / "in.csv").write_text("id,review\n1,A fine film.\n2,\n3,A dull film.\n", encoding="utf-8")
    lines = f"name: plain\nendpoint_name: {ENDPOINT}\nmodel: azureml:sentiment@latest\n"
    (rig.folder / "plain.yml").write_text(lines + "environment_variables: {HFX_COLUMN: review}\n", encoding="utf-8")
    rig.done("endpoint", "create", "--name", ENDPOINT)
    create = ("deployment", "create", "-f", rig.folder / "plain.yml", "--set-default", "--repository")
    assert rig.hfx(*create, rig.folder)[0] == 2
    rig.done(*create, models)
    code, out, err = rig.hfx("invoke", ENDPOINT, "--input", rig.folder / "in.csv", "--wait", "--json")
    assert code == 0, err
    job = json.loads(out)
    assert (job["status"], job["mini_batches"], job["done"], job["failed"]) == ("Completed", 1, 1, 1)
    with (Path(job["output"]) / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with local_model(models, "sentiment") as model:
        labels = [model.answer({"text_input": [text]})["label"][0] for text in ("A fine film.", "A dull film.")]
    assert [row["label"] for row in rows] == [labels[0], "", labels[1]]
    assert rows[1]["error"] == "The column 'review' is empty."
    code, _, err = rig.hfx("invoke", ENDPOINT, "--input", rig.folder / "in.csv", "--timeout", "3")
    assert code == 2
    assert "scoring script" in err


def test_a_job_of_a_model_that_was_killed_is_resumed(rig: Rig, models: Path) -> None:
    rows = [f"text {number} " * (number % 7 + 1) for number in range(3000)]
    (rig.folder / "in.csv").write_text("text\n" + "\n".join(rows) + "\n", encoding="utf-8")
    rig.done("endpoint", "create", "--name", ENDPOINT)
    lines = f"name: plain\nendpoint_name: {ENDPOINT}\nmodel: {{path: repository/sentiment}}\nmini_batch_size: 50\n"
    (rig.folder / "plain.yml").write_text(lines, encoding="utf-8")
    rig.done("deployment", "create", "-f", rig.folder / "plain.yml", "--set-default")
    killed = rig.invoke("--input", rig.folder / "in.csv")["name"]
    rig.wait_for_parts(killed, 3)
    rig.kill(killed)
    assert rig.show(killed)["status"] == "Paused"
    rig.done("job", "resume", killed)
    whole = rig.invoke("--input", rig.folder / "in.csv")["name"]
    outputs = [Path(rig.wait(job)["output"], "predictions.csv").read_bytes() for job in (killed, whole)]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"\n") == 3001


def test_the_tutorial_does_what_it_says(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "azureml.md").read_text(encoding="utf-8")
    (tmp_path / "model_repository").symlink_to(models)
    for name, content in {"code": {}, "data": {"a.csv": "text\nA fine film.\n", "b.csv": "text\nDull.\n"}}.items():
        (tmp_path / name).mkdir()
        for file, lines in content.items():
            (tmp_path / name / file).write_text(lines, encoding="utf-8")
    (tmp_path / "json.py").write_text("raise OSError('imported from the working folder')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if language == "sh":
            for line in block.splitlines():
                assert "NAME" in line or main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
        elif language in ("python", "yaml"):
            Path(block.partition("\n")[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    files = [
        line.split(",")[0] for line in Path("results/named-outputs/score/predictions.csv").read_text().splitlines()
    ]
    assert files == ["a.csv", "b.csv"]
    assert capsys.readouterr().out.count("Completed") >= 4
