"""A healthy repository has no findings, and each planted mistake triggers exactly one rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from hfx.errors import RepositoryError, UsageError
from hfx.manifest import Precision, TritonTarget, read_manifest, write_manifest
from hfx.releases import MINIMUM_SECURE, QUEUE_POLICY_FIXED, release
from hfx.repository.config_pbtxt import EnsembleStep, ModelConfig, TensorSpec, render
from hfx.repository.lint import RULES, lint
from hfx.repository.rules.scheduling import queue_policy
from hfx.repository.subject import read_subject
from tests.rigs.files.repositories import (
    CORES,
    ENSEMBLE,
    IDS,
    LOGITS,
    NET,
    NET_GPU,
    POSTPROCESS,
    SCORES,
    TEXT,
    TOKENIZE,
    TOP_K,
    OnnxInput,
    build,
    on_openvino,
    put,
    save,
    seal,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return build(tmp_path)


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return a mistake that replaces text in one file, which must hold it."""

    def plant(repository: Path) -> None:
        text = (repository / name).read_text()
        assert old in text
        (repository / name).write_text(text.replace(old, new))

    return plant


def configure(*configs: ModelConfig) -> Callable[[Path], None]:
    """Return a mistake that writes configurations; m_net's for CPUs is config.pbtxt and configs/cpu.pbtxt."""

    def plant(repository: Path) -> None:
        for config in configs:
            put(repository, config)
            if config.name == "m_net":
                put(repository, config, "cpu")

    return plant


def changed(config: ModelConfig, **changes: Any) -> Callable[[Path], None]:
    """Return a mistake that writes a configuration with other values."""
    return configure(replace(config, **changes))


def gpu(**changes: Any) -> Callable[[Path], None]:
    """Return a mistake that writes m_net's configuration for GPUs with other values."""
    return lambda repository: put(repository, replace(NET_GPU, **changes), "gpu")


def saved(name: str, **options: object) -> Callable[[Path], None]:
    """Return a mistake that writes one ONNX file again."""
    return lambda repository: save(repository, name, **options)  # type: ignore[arg-type]


def net(config: ModelConfig = NET, **options: object) -> Callable[[Path], None]:
    """Return a mistake that configures m_net for CPUs and GPUs alike, and writes both files."""

    def plant(repository: Path) -> None:
        configure(config)(repository)
        put(repository, replace(config, default_model_filename="model.fp16.onnx", instance_kind="KIND_GPU"), "gpu")
        for name in ("model.onnx", "model.fp16.onnx"):
            save(repository, name, **options)  # type: ignore[arg-type]

    return plant


def steps(*changed: EnsembleStep) -> ModelConfig:
    """Return the ensemble with some steps replaced by other steps of the same model."""
    by_model = {step.model_name: step for step in changed}
    return replace(ENSEMBLE, steps=tuple(by_model.get(step.model_name, step) for step in ENSEMBLE.steps))


def remove(name: str) -> Callable[[Path], None]:
    return lambda repository: (repository / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda repository: (repository / name).write_text(text)


def no_version(repository: Path) -> None:
    (repository / "m/1/.keep").unlink()
    (repository / "m/1").rmdir()


def link_outside(repository: Path) -> None:
    (repository / "foreign").mkdir()
    (repository / "foreign/1").mkdir()
    put(repository, replace(TOKENIZE, name="foreign"))
    (repository / "foreign/1/model.py").symlink_to("/etc/hostname")


def made_before(repository: Path) -> None:
    file = repository / "m/hfx.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "versions": {"hfx": "0.0.9"}}))


def external_data(repository: Path) -> None:
    import onnx

    path = repository / "m_net/1/model.onnx"
    model = onnx.load(path)
    weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    path.write_bytes(model.SerializeToString())


def empty_ensemble(repository: Path) -> None:
    (repository / "empty/1").mkdir(parents=True)
    put(repository, replace(ENSEMBLE, name="empty", inputs=(TEXT,), outputs=(TEXT,), steps=()))


def single(repository: Path, **changes: object) -> Path:
    """Add a Python model beside the ensemble; return its configuration's path."""
    (repository / "single/1").mkdir(parents=True)
    put(repository, replace(TOKENIZE, name="single", **changes))  # type: ignore[arg-type]
    (repository / "single/1/model.py").touch()
    return repository / "single/config.pbtxt"


def cached(repository: Path) -> None:
    config = single(repository, inputs=(TEXT, TensorSpec("do_sample", "TYPE_BOOL", (1,), optional=True)))
    config.write_text(config.read_text() + "response_cache { enable: true }\n")


EXTRA = TensorSpec("extra", "TYPE_INT32", (1,), optional=True)
REQUIRED = replace(EXTRA, optional=False)
WITH_EXTRA = replace(POSTPROCESS, inputs=(LOGITS, TOP_K, EXTRA))
TOKENIZE_FILE, POSTPROCESS_FILE, ENSEMBLE_FILE = (
    f"{name}/config.pbtxt" for name in ("m_tokenize", "m_postprocess", "m")
)
CPU_FILE, GPU_FILE = "m_net/configs/cpu.pbtxt", "m_net/configs/gpu.pbtxt"
ONNX, ONNX_FP16 = "m_net/1/model.onnx", "m_net/1/model.fp16.onnx"
SETTINGS, GENERATION, PYTHON = (f"m_tokenize/1/{name}" for name in ("settings.json", "generation.json", "model.py"))
FILENAME = "default_model_filename"
NO_POLICY = "default_queue_policy { }"
BATCHING, PREFERRED = "dynamic_batching {", "preferred_batch_size: 8"
FIXED_IDS: OnnxInput = ("input_ids", TensorProto.INT32, ["rows", 8])
PLAIN_IDS: OnnxInput = ("input_ids", TensorProto.INT32, ["rows", "width"])
ITEM_SHAPE: OnnxInput = ("item_shape", TensorProto.INT32, ["rows", 1])
FLAT_IDS: OnnxInput = ("input_ids", TensorProto.INT32, ["tokens"])
LONG_IDS: OnnxInput = ("input_ids", TensorProto.INT64, ["tokens"])
MASK: OnnxInput = ("mask", TensorProto.INT32, ["tokens"])
PLAIN_NET = replace(NET, inputs=(IDS,), item_shapes={})
TOKENIZE_STEP, NET_STEP, POSTPROCESS_STEP = ENSEMBLE.steps
EXTRA_STEP = replace(POSTPROCESS_STEP, input_map={**POSTPROCESS_STEP.input_map, "extra": "nowhere"})
MASK_STEP = replace(NET_STEP, input_map={"input_ids": "ids", "mask": "ids"})
OTHER_STEP = EnsembleStep("n", {}, {})
LONG_OUTPUT = replace(IDS, data_type="TYPE_INT64")
UNUSED_OUTPUT = replace(TOKENIZE, outputs=(IDS, REQUIRED))
UNUSED_STEP = replace(TOKENIZE_STEP, output_map={"input_ids": "ids", "extra": "unused"})


@dataclass(frozen=True)
class Mistake:
    rule: str
    plant: Callable[[Path], object]
    path: str
    line: str = ""  # a pattern of the line that the finding names; "" when none can be known
    triton: str = MINIMUM_SECURE
    machine: str = "x86_64"
    sealed: bool = True  # whether the manifest is written anew, so that only the mistake itself is found


MISTAKES = (
    Mistake("HFX101", remove(TOKENIZE_FILE), TOKENIZE_FILE),
    Mistake("HFX102", edit(POSTPROCESS_FILE, "max_batch_size: 64", "max_batch_size: many"), POSTPROCESS_FILE, "many"),
    Mistake("HFX102", edit(GPU_FILE, "backend", "bakcend"), GPU_FILE, "bakcend"),
    Mistake("HFX102", write(GPU_FILE, "name: 'm_net"), GPU_FILE, "name"),
    Mistake("HFX103", edit(ENSEMBLE_FILE, 'name: "m"', 'name: "n"'), ENSEMBLE_FILE, 'name: "n"'),
    Mistake("HFX104", edit(TOKENIZE_FILE, '"python"', '"pyhton"'), TOKENIZE_FILE, "pyhton"),
    Mistake("HFX105", edit(TOKENIZE_FILE, 'backend: "python"', ""), TOKENIZE_FILE),
    Mistake("HFX106", no_version, "m"),
    Mistake("HFX107", remove(ONNX_FP16), GPU_FILE, FILENAME),
    Mistake("HFX107", gpu(default_model_filename="../1/model.onnx"), GPU_FILE, FILENAME),
    Mistake("HFX108", link_outside, "foreign/1/model.py"),
    Mistake("HFX109", lambda repository: (repository / ".hfx-staging-m-abc").mkdir(), ".hfx-staging-m-abc"),
    Mistake("HFX110", remove(GPU_FILE), GPU_FILE),
    Mistake("HFX111", write(SETTINGS, '{\n"file": "/home/me/x"}'), SETTINGS, "/home/me/x"),
    Mistake("HFX111", write(GENERATION, '{"prefix": "/home/me/x"}'), GENERATION, "/home/me/x"),
    Mistake("HFX111", gpu(parameters={"cache": "/tmp/cache"}), GPU_FILE, "/tmp/cache"),
    Mistake("HFX201", write("m/hfx.json", "{}"), "m/hfx.json", sealed=False),
    Mistake("HFX202", remove(SETTINGS), SETTINGS, sealed=False),
    Mistake("HFX203", write(SETTINGS, "{}"), SETTINGS, sealed=False),
    Mistake("HFX204", write("m_tokenize/1/more.json", "{}"), "m_tokenize/1/more.json", sealed=False),
    Mistake("HFX205", made_before, "m/hfx.json", sealed=False),
    Mistake("HFX301", changed(TOKENIZE, inputs=(TEXT, TEXT)), TOKENIZE_FILE, "^input.*text_input"),
    Mistake("HFX301", changed(POSTPROCESS, outputs=(SCORES, SCORES)), POSTPROCESS_FILE, "^output"),
    Mistake("HFX302", changed(TOKENIZE, inputs=(TEXT, replace(EXTRA, dims=()))), TOKENIZE_FILE, "extra"),
    Mistake("HFX303", changed(TOKENIZE, inputs=(TEXT, replace(EXTRA, dims=(-2,)))), TOKENIZE_FILE, "extra"),
    Mistake("HFX401", changed(ENSEMBLE, steps=(*ENSEMBLE.steps, OTHER_STEP)), ENSEMBLE_FILE, '"n"'),
    Mistake("HFX402", configure(steps(MASK_STEP)), ENSEMBLE_FILE, '"mask"'),
    Mistake("HFX403", changed(TOKENIZE, inputs=(TEXT, REQUIRED)), ENSEMBLE_FILE, "m_tokenize"),
    Mistake("HFX404", configure(WITH_EXTRA, steps(EXTRA_STEP)), ENSEMBLE_FILE, "nowhere"),
    Mistake("HFX405", changed(ENSEMBLE, outputs=(SCORES, replace(SCORES, name="label"))), ENSEMBLE_FILE, "label"),
    Mistake("HFX406", changed(ENSEMBLE, steps=(*ENSEMBLE.steps, TOKENIZE_STEP)), ENSEMBLE_FILE, '"ids"'),
    Mistake("HFX407", changed(TOKENIZE, outputs=(LONG_OUTPUT,)), ENSEMBLE_FILE, "m_net"),
    Mistake("HFX408", changed(POSTPROCESS, inputs=(replace(LOGITS, dims=(4,)), TOP_K)), ENSEMBLE_FILE, '"logits"'),
    Mistake("HFX408", changed(ENSEMBLE, outputs=(replace(SCORES, dims=(-1, 2)),)), ENSEMBLE_FILE, "^output"),
    Mistake("HFX409", changed(POSTPROCESS, max_batch_size=8), ENSEMBLE_FILE, "max_batch_size"),
    Mistake("HFX410", changed(POSTPROCESS, decoupled=True), ENSEMBLE_FILE, "m_postprocess"),
    Mistake("HFX411", changed(ENSEMBLE, instance_kind="KIND_CPU"), ENSEMBLE_FILE, "instance_group"),
    Mistake("HFX412", empty_ensemble, "empty/config.pbtxt", "platform"),
    Mistake("HFX413", changed(POSTPROCESS, inputs=(LOGITS, replace(TOP_K, optional=False))), ENSEMBLE_FILE, '"top_k"'),
    Mistake("HFX414", changed(ENSEMBLE, inputs=(TEXT, TOP_K, EXTRA)), ENSEMBLE_FILE, "^input.*extra"),
    Mistake("HFX414", configure(UNUSED_OUTPUT, steps(UNUSED_STEP)), ENSEMBLE_FILE, "output_map.*unused"),
    Mistake("HFX501", edit(TOKENIZE_FILE, BATCHING, f"{BATCHING} {PREFERRED}"), TOKENIZE_FILE, PREFERRED),
    *(
        Mistake("HFX502", edit(TOKENIZE_FILE, NO_POLICY, f"default_queue_policy {{ {field} }}"), TOKENIZE_FILE, field)
        for field in ("max_queue_size: 128", "default_timeout_microseconds: 5000000", "allow_timeout_override: true")
    ),
    Mistake("HFX503", lambda folder: single(folder, max_batch_size=0), "single/config.pbtxt", "dynamic_batching"),
    Mistake("HFX504", changed(POSTPROCESS, instance_kind="KIND_GPU"), POSTPROCESS_FILE, "KIND_GPU"),
    Mistake("HFX505", edit(CPU_FILE, "count: 1", "count: 2"), CPU_FILE, "intra_op_thread_count"),
    Mistake("HFX506", cached, "single/config.pbtxt", "response_cache"),
    Mistake("HFX601", write(ONNX_FP16, "no graph"), ONNX_FP16),
    Mistake("HFX601", write(ONNX_FP16, ""), ONNX_FP16),
    Mistake("HFX602", saved("model.onnx", opset=27), ONNX),
    Mistake("HFX603", saved("model.onnx", ir=14), ONNX),
    Mistake("HFX604", saved("model.fp16.onnx", operators=[("", "MatMulInteger")]), GPU_FILE, FILENAME),
    Mistake("HFX605", saved("model.fp16.onnx", operators=[("com.microsoft", "FusedMatMul")]), GPU_FILE, FILENAME),
    Mistake("HFX606", gpu(outputs=(LOGITS, replace(LOGITS, name="embedding"))), GPU_FILE, "embedding"),
    Mistake("HFX607", saved("model.onnx", inputs=[FLAT_IDS, ITEM_SHAPE, MASK]), CPU_FILE, "^input"),
    Mistake("HFX608", saved("model.fp16.onnx", inputs=[LONG_IDS, ITEM_SHAPE]), GPU_FILE, "input_ids"),
    Mistake("HFX609", net(PLAIN_NET, inputs=[FIXED_IDS]), GPU_FILE, "^input"),
    Mistake("HFX610", saved("model.fp16.onnx", inputs=[PLAIN_IDS, ITEM_SHAPE]), GPU_FILE, "input_ids"),
    Mistake("HFX611", net(replace(NET, item_shapes={}), inputs=[FLAT_IDS]), GPU_FILE, "allow_ragged_batch"),
    Mistake("HFX612", net(replace(NET, inputs=(replace(IDS, ragged=True, optional=True),))), GPU_FILE, "input_ids"),
    Mistake("HFX613", external_data, ONNX),
    Mistake("HFX615", on_openvino, CPU_FILE, "openvino"),
    Mistake("HFX701", remove(PYTHON), PYTHON),
    Mistake("HFX702", write(PYTHON, "def f(:\n"), PYTHON, "def f"),
    Mistake("HFX702", write(PYTHON, "x = 1\0"), PYTHON),
    Mistake("HFX703", lambda repository: runs_on(repository, "openvino"), "single/config.pbtxt", "openvino"),
    Mistake("HFX703", lambda repository: runs_on(repository, "native"), "single/config.pbtxt", "native"),
    Mistake("HFX703", lambda repository: runs_on(repository, "tensorrt"), "single/config.pbtxt", "tensorrt"),
    Mistake("HFX801", lambda repository: needs(repository, "26.10"), "m/hfx.json"),
    Mistake("HFX802", lambda repository: None, ".", triton="26.06"),
    Mistake("HFX803", write("m_net/1/libhfx_operators_aarch64.so", ""), "m_net/1/libhfx_operators.so"),
)


def runs_on(repository: Path, runtime: str, **fields: object) -> None:
    """Add a generator's engine with ONNX Runtime's files, and further `fields` in engine.json."""
    single(repository, parameters={"cpu_runtime": runtime})
    (repository / "single/1/cpu").mkdir()
    (repository / "single/1/cpu/engine.json").write_text(json.dumps({"format": 1, **fields}))


def needs(repository: Path, minimum: str) -> None:
    path = repository / "m" / "hfx.json"
    write_manifest(replace(read_manifest(path), triton=TritonTarget("24.10", minimum)), path)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.rule}-{mistake.path}")
def test_a_planted_mistake_makes_exactly_its_rule_speak(repository: Path, mistake: Mistake) -> None:
    mistake.plant(repository)
    if mistake.sealed:
        seal(repository)
    findings = lint(repository, mistake.triton, CORES, mistake.machine)
    assert {finding.rule for finding in findings} == {mistake.rule}, "\n".join(map(str, findings))
    assert mistake.path in {finding.path for finding in findings}
    assert all(finding.fix and finding.severity in ("error", "warning") for finding in findings)
    line = next(finding.line for finding in findings if finding.path == mistake.path)
    assert (line is not None) == bool(mistake.line)
    if line is not None:
        assert re.search(mistake.line, (repository / mistake.path).read_text().splitlines()[line - 1])


def test_every_rule_is_planted_and_has_an_id_and_a_title_of_its_own() -> None:
    assert sorted({mistake.rule for mistake in MISTAKES}) == [rule.id for rule in RULES]
    assert len({rule.title for rule in RULES if rule.title}) == len(RULES)


def test_a_model_for_gpus_only_may_need_a_gpu(repository: Path) -> None:
    for variant in ("", "cpu"):
        put(repository, NET_GPU, variant)
    seal(repository)
    assert {finding.rule for finding in lint(repository, cores=CORES)} == {"HFX504"}
    seal(repository, Precision(None, "fp16"))
    assert lint(repository, cores=CORES) == []


def test_a_newer_release_runs_a_newer_opset(repository: Path) -> None:
    save(repository, "model.onnx", opset=23, ir=11)
    seal(repository)
    assert errors(repository, "24.10") == {"HFX602", "HFX603"}
    assert errors(repository, "25.11") == set()


def test_python_files_are_read_as_the_python_of_the_release_reads_them(repository: Path) -> None:
    write("m_tokenize/1/model.py", "try:\n  pass\nexcept* ValueError:\n  pass\n")(repository)
    seal(repository)
    assert errors(repository, "24.10") == {"HFX702"}
    assert errors(repository, "24.12") == set()


def errors(repository: Path, triton: str) -> set[str]:
    return {finding.rule for finding in lint(repository, triton, cores=CORES) if finding.severity == "error"}


@pytest.mark.parametrize(
    ("policy", "seconds", "bounded"),
    [
        ("{ }", "4", True),
        ("{ }", "0", False),
        ("{ max_queue_size: 128 }", "0", False),
        ("{ max_queue_size: 128 default_timeout_microseconds: 5000000 }", "0", True),
    ],
)
def test_a_queue_must_be_bounded_by_its_policy_or_by_the_tokenizing_step(
    repository: Path, policy: str, seconds: str, bounded: bool
) -> None:
    (repository / TOKENIZE_FILE).write_text(
        render(replace(TOKENIZE, parameters={"max_queue_seconds": seconds}), "tests")
    )
    for path in repository.rglob("*.pbtxt"):
        path.write_text(path.read_text().replace(NO_POLICY, f"default_queue_policy {policy}"))
    fixed = replace(release("26.07"), tag=QUEUE_POLICY_FIXED)
    assert any(queue_policy.findings(read_subject(repository, fixed, CORES))) is not bounded
    stalls = any(queue_policy.findings(read_subject(repository, release("26.07"), CORES)))
    assert stalls is ("max_queue_size" in policy)


def test_threads_are_counted_along_an_ensemble(repository: Path) -> None:
    assert {finding.rule for finding in lint(repository, cores=3)} == {"HFX505"}


@pytest.mark.parametrize(
    ("runtime", "fields"),
    [
        ("onnxruntime", {"openvino": None}),
        ("onnxruntime", {"openvino": {}}),
        ("openvino", {"openvino": {"group": 0}}),
        ("native", {"operators": {"file": "a.so"}}),
    ],
)
def test_a_runtime_with_files_may_be_configured(repository: Path, runtime: str, fields: dict[str, object]) -> None:
    runs_on(repository, runtime, **fields)
    assert lint(repository, cores=CORES) == []


def test_a_repository_of_others_needs_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "other/1").mkdir(parents=True)
    (tmp_path / "other/1/model.py").touch()
    put(tmp_path, replace(TOKENIZE, name="other"))
    (tmp_path / "README.md").touch()
    assert lint(tmp_path) == []


def test_an_empty_repository_is_clean_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert lint(tmp_path) == []
    with pytest.raises(RepositoryError):
        lint(tmp_path / "missing")
    with pytest.raises(UsageError):
        lint(tmp_path, "1.0")
