"""The CPU runtime of a generator: its choice, its gate with its fallback, its record, and serving.

Models of earlier versions may name OpenVINO as their runtime; they open on the ONNX files beside OpenVINO's own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hfx.cli import main
from hfx.errors import ModelCorrupt, UsageError, VerificationFailed
from hfx.exporter.generation import plan
from hfx.exporter.generation.engine_folder import WEIGHTS
from hfx.exporter.generation.folders import write_stream_configs
from hfx.exporter.generation.runtimes import possible_runtimes
from hfx.exporter.generation.steps import STEPS, answer_in_torch, compare_engines, seal_model
from hfx.exporter.quantize.generator import FORMATS_TRIED
from hfx.exporter.runtime import CpuChoice
from hfx.local.generator import LocalGenerator
from hfx.native.build import LIBRARY
from hfx.repository import lint
from hfx.repository.edit import value
from tests.rigs.checkpoints import generator_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint, few_texts
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.machine.tiers import full
from tests.unit.exporter.test_export_generation import TEXT, contents

pytestmark = pytest.mark.slow
native = pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here")
# For tests of the choice alone: the gate has its own tests.
UNGATED = [step for step in STEPS if step.run not in (answer_in_torch, compare_engines)]
REQUESTS = [{"text_input": text, "max_tokens": 7, "num_beams": beams} for text in (TEXT, "a cat") for beams in (1, 3)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generator_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / "gpt2", "gpt2", {"max_new_tokens": 12})


def engine(repository: Path) -> Path:
    return repository / "m_stream" / "1" / "cpu"


def parameter(repository: Path) -> object:
    return value(repository, "m_stream", "parameters.cpu_runtime")


def answers(repository: Path, runtime: str | None = None) -> tuple[str, list[Any]]:
    with LocalGenerator.open(repository, "m", cpu_runtime=runtime) as generator:
        return generator.runtime, generator.infer_all(REQUESTS)


# Models of earlier versions


def aged(plan: Any, made: Any) -> Any:
    """Make the engine folder look like one that OpenVINO served, and seal it."""
    folder, parts = made.version / "cpu", ("decoder", "encoder") if plan.max_source else ("decoder",)
    for name in [f"openvino_{part}.{ending}" for part in parts for ending in ("xml", "bin")]:
        (folder / name).write_text("what OpenVINO read")
    facts = {"minimum": "2026.4", "kv_type": "u8", "group": 32, "encoder": None}
    facts |= {part: f"openvino_{part}.xml" for part in parts}
    content = json.loads((folder / "engine.json").read_text()) | {"runtime": "openvino", "openvino": facts}
    (folder / "engine.json").write_text(json.dumps(content))
    chosen: dict[Any, CpuChoice] = {"cpu": CpuChoice("openvino")}  # type: ignore[arg-type]
    write_stream_configs(plan, made.version.parent, chosen)
    return seal_model(plan, replace(made, chosen=chosen))


@pytest.fixture(scope="module", params=["gpt2", full("bart"), full("t5")])
def on_openvino(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one model `m`, as earlier versions published it for OpenVINO."""
    folder = tmp_path_factory.mktemp(request.param)
    saved = generator_checkpoints.save(folder / "checkpoint", request.param, {"max_new_tokens": 12})
    steps = [replace(step, run=aged) if step.run is seal_model else step for step in STEPS]
    with few_texts(2):
        export_checkpoint(saved, folder / "r", steps, name="m")
    return folder / "r"


def test_an_old_openvino_generator_falls_back_to_onnxruntime_and_logs_once(
    on_openvino: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert parameter(on_openvino) == "openvino"
    runtime, found = answers(on_openvino)
    (record,) = caplog.records
    assert (record.levelname, runtime) == ("WARNING", "onnxruntime")
    assert "in the place of OpenVINO" in record.getMessage()
    assert record.getMessage().endswith("Fix: Export the model again")
    assert answers(on_openvino, "onnxruntime") == ("onnxruntime", found)
    assert len(caplog.records) == 1


def test_commands_take_a_model_that_openvino_served(on_openvino: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(on_openvino) == []
    assert main(["list", str(on_openvino)]) == 0
    capsys.readouterr()
    assert main(["verify", "m", "--repository", str(on_openvino), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parity"]["same"] >= 0.98


# What is chosen


@pytest.mark.parametrize(("family", "precision"), [("gpt2", "fp32"), ("bart", "int8"), ("gpt2", "int4")])
def test_auto_takes_native_operators_where_they_can_be_had(family: str, precision: str, tmp_path: Path) -> None:
    saved = generator_checkpoints.save(tmp_path / "checkpoint", family, {"num_beams": 1 if family == "gpt2" else 3})
    folder = tmp_path / "r"
    manifest = export_checkpoint(saved, folder, UNGATED, name="m", cpu_runtime="auto", precision=precision, slots=8)
    chosen = possible_runtimes("auto", manifest.precision.cpu)[0]  # type: ignore[arg-type]
    assert manifest.choices["cpu_runtime"] == {"runtime": chosen, "requested": "auto", "milliseconds": {}}
    assert (chosen == "native") is (precision in ("int8", "int4") and HAS_NATIVE)
    assert (engine(folder) / LIBRARY).is_file() is (chosen == "native")
    assert json.loads((engine(folder) / "engine.json").read_text())["runtime"] == chosen
    assert parameter(folder) == chosen


def test_a_runtime_that_a_model_has_no_files_for_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path, UNGATED, name="m", cpu_runtime="onnxruntime")
    for runtime in ("openvino", "native"):
        with pytest.raises(ModelCorrupt, match=f"nothing for the runtime {runtime}"):
            answers(tmp_path, runtime)
    with pytest.raises(UsageError, match="'tensorrt' is unknown"):
        answers(tmp_path, "tensorrt")


def test_a_model_for_gpus_alone_has_no_cpu_runtime(checkpoint: Path, tmp_path: Path) -> None:
    options = {"cpu_runtime": "auto", "device": "gpu", "precision": "fp16"}
    manifest = export_checkpoint(checkpoint, tmp_path, UNGATED, name="m", **options)
    assert "cpu_runtime" not in manifest.choices
    assert parameter(tmp_path) is None


def damaged(name: str) -> list[Any]:
    """Return the export's steps with a damaged decoder, some of whose weights change their sign."""

    def run(plan: Any, made: Any) -> Any:
        folder = made.version / "cpu"
        weights = np.fromfile(folder / WEIGHTS, np.uint8)
        weights[len(weights) // 2 :: 7] ^= 0x80
        weights.tofile(folder / "other.bin")
        model = onnx.load(folder / name, load_external_data=False)
        for place in [entry for tensor in model.graph.initializer for entry in tensor.external_data]:
            place.value = "other.bin" if place.key == "location" else place.value
        (folder / name).write_bytes(model.SerializeToString())
        return made

    return [*STEPS[:3], replace(STEPS[2], run=run), *STEPS[3:]]


INT8: dict[str, Any] = {"name": "m", "precision": "int8", "max_drop": 0.05}


@pytest.fixture
def one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try a single format, as other formats would write the damaged files again."""
    monkeypatch.setattr(plan, "FORMATS_TRIED", {"int8": FORMATS_TRIED["int8"][:1]})


@native
@pytest.mark.usefixtures("least_texts", "one_format")
def test_where_native_operators_are_wrong_auto_publishes_onnxruntime(checkpoint: Path, tmp_path: Path) -> None:
    manifest = export_checkpoint(checkpoint, tmp_path, damaged("native_decoder.onnx"), cpu_runtime="auto", **INT8)
    choice: Any = manifest.choices["cpu_runtime"]
    assert (choice["runtime"], choice["requested"]) == ("onnxruntime", "auto")
    assert "like the checkpoint" in choice["refused"]["native"]
    figures: Any = manifest.parity["cpu"]
    assert figures["runtime"] == "onnxruntime"
    assert "reserve" not in figures
    assert not (engine(tmp_path) / LIBRARY).exists()
    assert parameter(tmp_path) == "onnxruntime"
    assert lint(tmp_path) == []


@native
@pytest.mark.usefixtures("least_texts", "one_format")
@pytest.mark.parametrize(("file", "runtime"), [("native_decoder.onnx", "native"), ("decoder.onnx", "onnxruntime")])
def test_a_requested_native_export_needs_both_its_decoders_correct(
    checkpoint: Path, tmp_path: Path, file: str, runtime: str
) -> None:
    with pytest.raises(VerificationFailed, match=rf"engine for CPU \({runtime}\)"):
        export_checkpoint(checkpoint, tmp_path, damaged(file), cpu_runtime="native", strict=True, **INT8)
    assert contents(tmp_path) == {}
