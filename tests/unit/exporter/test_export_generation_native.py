"""A generator on native operators: export, records, lint, bundle, and the fallback on other processors."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.deploy import bundle, wheels
from hfx.deploy.deployment import needs, open_deployment
from hfx.errors import CheckpointUnsupported, ModelCorrupt, UsageError
from hfx.exporter.generation.runtimes import possible_runtimes
from hfx.exporter.generation.steps import STEPS, answer_in_torch, compare_engines
from hfx.local.generator import LocalGenerator
from hfx.manifest import read_manifest, verify_files
from hfx.native.build import LIBRARY, TARGETS
from hfx.python_backends.engine.spec import read_spec
from hfx.releases import MINIMUM_SECURE
from hfx.repository import lint
from hfx.repository.edit import Edit, change, value
from tests.rigs.checkpoints import generator_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint, export_zoo
from tests.rigs.files.wheels import HERE, wheels_for
from tests.rigs.machine.processors import HAS_NATIVE
from tests.unit.exporter.test_export_generation import contents, manifest_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here"),
]
NAME = "summaries"
ENGINE = Path(f"{NAME}_stream/1/cpu")
NO_KERNELS = {"HFX_NATIVE_KERNELS": "none"}  # as on a processor that has none of their instructions
REQUESTS = [{"text_input": "Once upon a time", "max_tokens": 12, "num_beams": beams} for beams in (1, 3)]
UNGATED = [step for step in STEPS if step.run not in (answer_in_torch, compare_engines)]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one trained model, exported with native operators on request."""
    folder = tmp_path_factory.mktemp("native") / "r"
    export_zoo("summaries-bart", folder, NAME, "int8", "native", slots=8)  # as tests/triton has it
    return folder


@pytest.fixture
def repository(published: Path, tmp_path: Path) -> Path:
    """A copy of the repository that a test may change."""
    return Path(shutil.copytree(published, tmp_path / "copy"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generator_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / "gpt2", "gpt2", {"max_new_tokens": 12})


def answers(repository: Path) -> tuple[str, list[Any]]:
    with LocalGenerator.open(repository, NAME) as generator:
        return generator.runtime, generator.infer_all(REQUESTS)


def elsewhere(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process that finds no kernels."""
    command = ["env", *(f"{name}={value}" for name, value in NO_KERNELS.items()), sys.executable, "-c", code]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def test_manifest_and_engine_json_record_native_and_its_fallback(published: Path) -> None:
    manifest = manifest_of(published, NAME)
    figures: Any = manifest.parity["cpu"]
    assert figures["runtime"] == "native"
    assert set(figures["reserve"]) == {"onnxruntime"}
    for each in (figures, figures["reserve"]["onnxruntime"]):
        assert each["agreement"] >= 0.9  # as the export is allowed
        assert each["greedy"]["batch_variants"] == each["beams"]["batch_variants"] == 0
    assert manifest.choices["cpu_runtime"] == {"runtime": "native", "requested": "native", "milliseconds": {}}
    facts = json.loads((published / ENGINE / "engine.json").read_text())
    x86, arm = (
        {
            "file": target.library,
            "sha256": hashlib.sha256((published / ENGINE / target.library).read_bytes()).hexdigest(),
        }
        for target in TARGETS.values()
    )
    assert facts["runtime"] == "native"
    decoders = {beams: name.replace("decoder", "native_decoder") for beams, name in facts["files"]["decoder"].items()}
    expected = {**x86, "aarch64": arm, "kv_type": "float16", "decoder": decoders}
    assert (facts["operators"], facts["kv_type"]) == (expected, "float32")
    for each in (x86, arm):
        assert manifest.files[str(ENGINE / each["file"])].sha256 == each["sha256"]
    assert value(published, f"{NAME}_stream", "parameters.cpu_runtime") == "native"
    assert lint(published) == []


def test_the_memory_for_keys_and_values_is_that_of_the_runtime(repository: Path) -> None:
    spec, manifest = read_spec(repository / ENGINE), manifest_of(repository, NAME)
    position = 2 * 8 * spec.layers * spec.kv_heads * spec.head_dim  # of 8 slots
    assert needs(repository, manifest, "cpu", MINIMUM_SECURE).cache == position * (
        2 * spec.max_length + spec.max_source
    )
    change(repository, NAME, [Edit(f"{NAME}_stream", "parameters.cpu_runtime", "onnxruntime")], "a test")
    manifest = manifest_of(repository, NAME)
    assert needs(repository, manifest, "cpu", MINIMUM_SECURE).cache == position * (
        4 * spec.max_length + spec.max_source
    )


def test_the_cpu_runtime_parameter_chooses_the_runtime(repository: Path) -> None:
    runtime, found = answers(repository)
    assert runtime == "native"
    change(repository, NAME, [Edit(f"{NAME}_stream", "parameters.cpu_runtime", "onnxruntime")], "a test")
    assert lint(repository) == []
    runtime, others = answers(repository)
    assert runtime == "onnxruntime"
    assert [each["text_output"] for each in others] == [each["text_output"] for each in found]


def test_a_runtime_without_files_in_the_engine_is_refused(repository: Path) -> None:
    file = repository / f"{NAME}_stream/config.pbtxt"
    file.write_text(file.read_text().replace('"native"', '"openvino"'))
    found = [finding for finding in lint(repository) if finding.rule == "HFX703"]
    assert "is for native or onnxruntime" in found[0].message
    with pytest.raises(ModelCorrupt, match="nothing for the runtime openvino"):
        LocalGenerator.open(repository, NAME, cpu_runtime="openvino")


def test_list_lint_and_verify_know_native_generators(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(published)]) == 0
    assert " native " in capsys.readouterr().out.splitlines()[1]
    assert main(["lint", str(published)]) == 0
    capsys.readouterr()
    assert main(["verify", NAME, "--repository", str(published), "--json"]) == 0
    parity = json.loads(capsys.readouterr().out)["parity"]
    assert parity["same"] >= parity["at_export"]  # of the runtime with the lower agreement
    assert (parity["alone"], parity["other_alone"]) == (8, 0)


SERVED = """
import json, sys
from pathlib import Path
from tests.unit.exporter.test_export_generation_native import answers
print(json.dumps(answers(Path(sys.argv[1]))))
"""


def test_a_processor_without_kernels_falls_back_to_onnxruntime_and_logs_once(published: Path) -> None:
    done = elsewhere(SERVED, published)
    assert done.returncode == 0, done.stderr
    runtime, found = json.loads(done.stdout)
    assert runtime == "onnxruntime"
    assert [each["text_output"] for each in found] == [each["text_output"] for each in answers(published)[1]]
    (line,) = done.stderr.strip().splitlines()
    assert "no AVX2" in line


def test_a_library_that_was_changed_is_found_and_not_loaded(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    library = repository / ENGINE / LIBRARY
    library.write_bytes(library.read_bytes()[:-1] + b"\1")
    assert any(LIBRARY in f"{finding.path} {finding.message}" for finding in lint(repository))
    assert answers(repository)[0] == "onnxruntime"
    assert [record for record in caplog.records if "not the file" in record.getMessage()]


def test_a_bundle_has_the_library(published: Path, tmp_path: Path) -> None:
    deployment = open_deployment(published, [NAME])
    needed = wheels.requirements(deployment, with_numpy=False)
    packages = bundle.Packages(HERE, wheels_for(needed), with_numpy=False)
    bundle.write(deployment, tmp_path / "b", packages)
    assert (tmp_path / "b" / ENGINE / LIBRARY).read_bytes() == (published / ENGINE / LIBRARY).read_bytes()
    assert value(tmp_path / "b", f"{NAME}_stream", "parameters.cpu_runtime") == "native"
    assert verify_files(read_manifest(tmp_path / "b" / NAME / "hfx.json"), tmp_path / "b") == []
    assert answers(tmp_path / "b") == answers(published)


# What is chosen


def steps(run: Any) -> list[Any]:
    """Return the export's steps without the gate, and with `run` before the runtime is tried."""
    return [*UNGATED[:2], replace(UNGATED[2], run=run), *UNGATED[2:]]


def test_a_library_that_can_not_be_loaded_is_refused_with_its_reason(checkpoint: Path, tmp_path: Path) -> None:
    def spoil(plan: Any, made: Any) -> Any:
        (made.version / "cpu" / LIBRARY).write_bytes(b"no library")
        return made

    options: Mapping[str, Any] = {"precision": "int8", "cpu_runtime": "auto"}
    manifest = export_checkpoint(checkpoint, tmp_path, steps(spoil), name=NAME, **options)
    choice: Any = manifest.choices["cpu_runtime"]
    assert choice["runtime"] == "onnxruntime"
    assert "not the file" in choice["refused"]["native"]
    assert not (tmp_path / ENGINE / LIBRARY).exists()
    assert json.loads((tmp_path / ENGINE / "engine.json").read_text())["operators"] is None
    assert lint(tmp_path) == []


def test_unsupported_head_sizes_are_refused_before_the_comparison(tmp_path: Path) -> None:
    checkpoint = generator_checkpoints.save(tmp_path / "checkpoint", "gpt2", n_embd=264, n_head=1)
    repository = tmp_path / "r"
    with pytest.raises(CheckpointUnsupported, match="1 to 256 values"):
        export_checkpoint(checkpoint, repository, UNGATED, name=NAME, precision="int8", cpu_runtime="native")
    assert contents(repository) == {}


def test_an_export_for_onnxruntime_contains_no_native_library(checkpoint: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path, UNGATED, name=NAME, precision="int8", cpu_runtime="onnxruntime")
    assert not (tmp_path / ENGINE / LIBRARY).exists()
    with pytest.raises(ModelCorrupt, match="nothing for the runtime native"):
        LocalGenerator.open(tmp_path, NAME, cpu_runtime="native")


def test_native_is_refused_on_a_processor_without_kernels(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, wanted in NO_KERNELS.items():
        monkeypatch.setenv(name, wanted)
    words = ["export", str(checkpoint), "--cpu-runtime", "native", "--quantize", "--device", "cpu", "--name", NAME]
    assert main([*words, "--repository", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "--cpu-runtime native: " in said and "no AVX2" in said
    assert "Use --cpu-runtime auto." in said
    assert contents(tmp_path) == {}


def test_auto_does_not_consider_native_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wanted in NO_KERNELS.items():
        monkeypatch.setenv(name, wanted)
    assert possible_runtimes("auto", "int8") == ("onnxruntime",)


def test_an_installation_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hfx.native.build.HERE", tmp_path)
    assert possible_runtimes("auto", "int8") == ("onnxruntime",)
    with pytest.raises(UsageError, match="--cpu-runtime native"):
        possible_runtimes("native", "int8")
