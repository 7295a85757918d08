"""The CPU runtime of a generator: timed and chosen, gated together with its reserve, written down, and served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.cli import main
from hfx.errors import ModelCorrupt, UsageError, VerificationFailed
from hfx.exporter.generation.steps import STEPS, answer_in_torch, compare_engines, measure_on_data
from hfx.exporter.runtime import CpuChoice, possible_runtimes
from hfx.local.generator import LocalGenerator
from hfx.native.build import LIBRARY
from hfx.repository import lint
from hfx.repository.edit import Edit, change, value
from tests.rigs import writing_checkpoints
from tests.rigs.processors import HAS_NATIVE
from tests.rigs.published import export_checkpoint, few_texts
from tests.rigs.tiers import full
from tests.unit.exporter.test_export_generation import TEXT, contents, manifest_of

pytestmark = pytest.mark.slow
OTHERS = ("onnxruntime", *(["native"] if HAS_NATIVE else []))
OPENVINO_FILES = {"openvino_decoder.xml", "openvino_decoder.bin"}
# Of what is about the choice alone: the gate has its own tests.
UNGATED = [step for step in STEPS if step.run not in (answer_in_torch, compare_engines, measure_on_data)]
REQUESTS = [{"text_input": text, "max_tokens": 7, "num_beams": beams} for text in (TEXT, "a cat") for beams in (1, 3)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writing_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / "gpt2", "gpt2", {"max_new_tokens": 12})


@pytest.fixture(scope="module", params=["gpt2", full("bart"), full("t5")])
def on_openvino(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one model `m`, whose export was told to use OpenVINO."""
    folder = tmp_path_factory.mktemp(request.param)
    saved = writing_checkpoints.save(folder / "checkpoint", request.param, {"max_new_tokens": 12})
    with few_texts():
        export_checkpoint(saved, folder / "r", name="m", cpu_runtime="openvino")
    return folder / "r"


@pytest.fixture
def repository(on_openvino: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(on_openvino, tmp_path / "copy"))


def engine(repository: Path) -> Path:
    return repository / "m_stream" / "1" / "cpu"


def parameter(repository: Path) -> object:
    return value(repository, "m_stream", "parameters.cpu_runtime")


def answers(repository: Path, runtime: str | None = None) -> tuple[str, list[Any]]:
    with LocalGenerator.open(repository, "m", cpu_runtime=runtime) as generator:
        return generator.runtime, generator.infer_all(REQUESTS)


# What is published


def test_openvino_serves_and_onnxruntime_is_the_reserve(on_openvino: Path) -> None:
    manifest = manifest_of(on_openvino, "m")
    figures: Any = manifest.parity["cpu"]
    assert figures["runtime"] == "openvino"
    assert set(figures["reserve"]) == {"onnxruntime"}
    for each in (figures, figures["reserve"]["onnxruntime"]):
        assert each["agreement"] == 1.0
        assert each["forced"]["delta_share"] < 1e-4
        assert each["greedy"]["same"] + each["greedy"]["ties"] == 1.0
        assert each["greedy"]["company"] == each["beams"]["company"] == 0
    assert figures["texts"]["same"] >= 0.98
    assert manifest.choices["cpu_runtime"] == {"runtime": "openvino", "requested": "openvino", "milliseconds": {}}
    assert manifest.versions["openvino"]


def test_files_of_both_are_published_and_break_no_rule(on_openvino: Path) -> None:
    listed = {name.rpartition("/")[2] for name in manifest_of(on_openvino, "m").files if "/cpu/" in name}
    assert listed >= OPENVINO_FILES | {"engine.json", "weights.bin"}
    assert listed == {path.name for path in engine(on_openvino).iterdir()}
    assert json.loads((engine(on_openvino) / "engine.json").read_text())["runtime"] == "openvino"
    assert parameter(on_openvino) == "openvino"
    assert lint(on_openvino) == []


def test_either_runtime_gives_the_same_texts(on_openvino: Path) -> None:
    runtime, found = answers(on_openvino)
    assert runtime == "openvino"
    assert answers(on_openvino, "onnxruntime") == ("onnxruntime", found)


def test_the_configuration_says_which_one_serves(repository: Path) -> None:
    change(repository, "m", [Edit("m_stream", "parameters.cpu_runtime", "onnxruntime")], "a test")
    assert lint(repository) == []
    assert answers(repository)[0] == "onnxruntime"
    change(repository, "m", [Edit("m_stream", "parameters.cpu_runtime", "openvino")], "a test")
    assert answers(repository)[0] == "openvino"


ABSENT = """
import json, sys
sys.modules["openvino"] = None
from pathlib import Path
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.errors import ProviderMissing
from tests.unit.exporter.test_export_generation_runtimes import answers, engine
print(json.dumps(answers(Path(sys.argv[1]))))
try:
    Engine.open(engine(Path(sys.argv[1])), slots=2, threads=1, runtime="openvino")
except ProviderMissing as error:
    print(error)
"""


def test_without_the_package_onnxruntime_serves_with_one_line_in_the_log(on_openvino: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ABSENT, str(on_openvino)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    served, refusal = done.stdout.splitlines()
    runtime, found = json.loads(served)
    assert (runtime, found) == ("onnxruntime", answers(on_openvino)[1])
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ONNX Runtime serves in the place of OpenVINO")
    assert "openvino can't be imported" in refusal and "pip install 'openvino>=" in refusal


def test_the_command_line_says_the_runtime(on_openvino: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(on_openvino)]) == 0
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert row.split()[head.split().index("RUNTIME")] == "openvino"
    assert main(["--json", "list", str(on_openvino)]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["cpu_runtime"] == "openvino"
    assert main(["verify", "m", "--repository", str(on_openvino), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parity"]["same"] >= 0.98


# What is chosen


CASES = {"gpt2": ["1x16+16", "8x16+16"], "bart": ["1x80+16", "2x80+16"]}


@pytest.mark.parametrize(("family", "precision"), [("gpt2", "fp32"), ("bart", "int8")])
def test_auto_takes_the_faster_one_and_keeps_the_figures(family: str, precision: str, tmp_path: Path) -> None:
    saved = writing_checkpoints.save(tmp_path / "checkpoint", family, {"num_beams": 1 if family == "gpt2" else 3})
    folder = tmp_path / "r"
    manifest = export_checkpoint(saved, folder, UNGATED, name="m", cpu_runtime="auto", precision=precision, slots=8)
    choice: Any = manifest.choices["cpu_runtime"]
    figures = choice["milliseconds"]
    assert choice["requested"] == "auto"
    assert "refused" not in choice
    assert set(figures) == {"openvino", OTHERS[-1] if precision == "int8" else "onnxruntime"}
    assert all(list(each) == CASES[family] and min(each.values()) > 0 for each in figures.values())
    means = {runtime: np.prod(list(each.values())) for runtime, each in figures.items()}
    assert choice["runtime"] == min(means, key=lambda runtime: means[runtime])
    files = {path.name for path in engine(folder).iterdir()}
    assert OPENVINO_FILES.issubset(files) is (choice["runtime"] == "openvino")
    assert (LIBRARY in files) is (choice["runtime"] == "native")
    assert json.loads((engine(folder) / "engine.json").read_text())["runtime"] == choice["runtime"]
    assert parameter(folder) == choice["runtime"]


def test_a_single_runtime_has_no_files_of_the_other(checkpoint: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path, UNGATED, name="m", cpu_runtime="onnxruntime")
    assert not OPENVINO_FILES.intersection(path.name for path in engine(tmp_path).iterdir())
    with pytest.raises(ModelCorrupt, match="nothing for the runtime openvino"):
        answers(tmp_path, "openvino")
    with pytest.raises(UsageError, match="'tensorrt' is unknown"):
        answers(tmp_path, "tensorrt")


def test_a_model_for_gpus_alone_has_no_cpu_runtime(checkpoint: Path, tmp_path: Path) -> None:
    options = {"cpu_runtime": "auto", "device": "gpu", "precision": "fp16"}
    manifest = export_checkpoint(checkpoint, tmp_path, UNGATED, name="m", **options)
    assert "cpu_runtime" not in manifest.choices
    assert parameter(tmp_path) is None


def as_if_faster(plan: Any, made: Any) -> Any:
    """Choose OpenVINO, whatever it takes here."""
    return replace(made, choice=CpuChoice("openvino"))


def damage(name: str) -> Callable[[Any, Any], Any]:
    def run(plan: Any, made: Any) -> Any:
        """Turn the sign of a few weights."""
        file = made.version / "cpu" / name
        weights = np.fromfile(file, np.uint8)[: file.stat().st_size // 4 * 4].view(np.float32)
        weights[len(weights) // 2 :: 97] *= -1
        weights.tofile(file)
        return made

    return run


def steps(*runs: Callable[[Any, Any], Any]) -> list[Any]:
    """The export's steps, with `runs` in the place of the timing."""
    return [*STEPS[:2], *(replace(STEPS[2], run=run) for run in runs), *STEPS[3:]]


@pytest.mark.usefixtures("few_texts")
def test_where_openvino_is_wrong_auto_publishes_onnxruntime(checkpoint: Path, tmp_path: Path) -> None:
    changed = steps(as_if_faster, damage("openvino_decoder.bin"))
    manifest = export_checkpoint(checkpoint, tmp_path, changed, name="m", cpu_runtime="auto")
    choice: Any = manifest.choices["cpu_runtime"]
    assert (choice["runtime"], choice["requested"]) == ("onnxruntime", "auto")
    assert "does not continue texts like the checkpoint" in choice["refused"]["openvino"]
    figures: Any = manifest.parity["cpu"]
    assert figures["runtime"] == "onnxruntime"
    assert "reserve" not in figures
    assert not OPENVINO_FILES.intersection(path.name for path in engine(tmp_path).iterdir())
    assert parameter(tmp_path) == "onnxruntime"
    assert lint(tmp_path) == []


@pytest.mark.usefixtures("few_texts")
@pytest.mark.parametrize(("file", "runtime"), [("openvino_decoder.bin", "openvino"), ("weights.bin", "onnxruntime")])
def test_openvino_that_was_asked_for_must_be_right_and_its_reserve_too(
    checkpoint: Path, tmp_path: Path, file: str, runtime: str
) -> None:
    with pytest.raises(VerificationFailed, match=rf"engine for CPU \({runtime}\)"):
        export_checkpoint(checkpoint, tmp_path, steps(as_if_faster, damage(file)), name="m", cpu_runtime="openvino")
    assert contents(tmp_path) == {}


def test_a_runtime_that_can_not_run_the_model_is_refused_with_its_reason(checkpoint: Path, tmp_path: Path) -> None:
    def spoil(plan: Any, made: Any) -> Any:
        (made.version / "cpu" / "openvino_decoder.xml").write_text("<net/>")
        return made

    ungated = [*UNGATED[:2], replace(UNGATED[2], run=spoil), *UNGATED[2:]]
    manifest = export_checkpoint(checkpoint, tmp_path, ungated, name="m", cpu_runtime="auto")
    choice: Any = manifest.choices["cpu_runtime"]
    assert (choice["runtime"], choice["milliseconds"]) == ("onnxruntime", {})
    assert choice["refused"]["openvino"]


def test_an_export_without_the_package(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    manifest = export_checkpoint(checkpoint, tmp_path, UNGATED, name="m", cpu_runtime="auto")
    expected = {"runtime": "onnxruntime", "requested": "auto", "milliseconds": {}}
    assert manifest.choices["cpu_runtime"] == expected
    before = contents(tmp_path)
    words = ["export", str(checkpoint), "--device", "cpu", "--name", "o", "--cpu-runtime", "openvino"]
    assert main([*words, "--repository", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "--cpu-runtime openvino: the package openvino is not installed." in said
    assert "openvino>=" in said
    assert contents(tmp_path) == before


DAMAGED = """
import sys
sys.modules["openvino.opset16"] = None
from pathlib import Path
from tests.unit.exporter.test_export_generation_runtimes import UNGATED
from tests.rigs.published import export_checkpoint
for runtime in ("auto", "openvino"):
    export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]) / runtime, UNGATED, name="m", cpu_runtime=runtime)
"""


def test_a_damaged_installation_is_refused_with_its_reason(checkpoint: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", DAMAGED, str(checkpoint), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "CheckpointUnsupported: OpenVINO can't run" in done.stderr
    choice: Any = manifest_of(tmp_path / "auto", "m").choices["cpu_runtime"]
    assert choice["runtime"] == "onnxruntime"
    assert "opset16" in choice["refused"]["openvino"]
    assert not OPENVINO_FILES.intersection(path.name for path in engine(tmp_path / "auto").iterdir())
    assert contents(tmp_path / "openvino") == {}


def test_an_openvino_that_is_too_old_is_as_good_as_none() -> None:
    assert possible_runtimes("auto") == ("openvino", *OTHERS)
    assert possible_runtimes("auto", "9999.1") == OTHERS
    assert possible_runtimes("onnxruntime", "9999.1") == ("onnxruntime",)
    with pytest.raises(UsageError, match=r"9999\.1 or later is needed"):
        possible_runtimes("openvino", "9999.1")
