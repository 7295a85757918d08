"""Rules about ONNX files: whether the release can run them, and whether the configuration describes them correctly.

The rules about configurations follow the validation by ModelState in triton-inference-server/onnxruntime_backend,
src/onnxruntime.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hfx.python_backends.onnxruntime.config import OPENVINO
from hfx.repository.model_config import pb
from hfx.repository.onnx_facts import OnnxFacts, OnnxTensor
from hfx.repository.rules.files import DEFAULT_FILES, backend_of
from hfx.repository.rules.scheduling import has_gpu
from hfx.repository.subject import ConfigFile, Problem, Subject, rule

INT8_OPERATORS = {
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul", "QuantizeLinear",
}  # fmt: skip
# Operators of ONNX Runtime that have kernels for GPUs, with which `hfx export` writes the files for GPUs.
FUSED_ON_GPU = {"Attention", "BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization"}
CONTRIB_DOMAINS = {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}


def _configured(subject: Subject) -> Iterator[tuple[ConfigFile, Path]]:
    """Yield each configuration of the onnxruntime backend with each file that it runs."""
    for model, _, config in subject.parsed():
        if backend_of(config) == "onnxruntime":
            name = config.message.default_model_filename or DEFAULT_FILES["onnxruntime"]
            for version in model.versions:
                if (version / name).exists() and ".." not in Path(name).parts:
                    yield config, version / name


def _readable(subject: Subject) -> Iterator[tuple[ConfigFile, Path, OnnxFacts]]:
    for config, path in _configured(subject):
        facts = subject.onnx(path)
        if not facts.problem:
            yield config, path, facts


@rule("HFX601", "error", "Export the model again.")
def unreadable(subject: Subject) -> Iterator[Problem]:
    """An ONNX file can't be read."""
    for _, path in _configured(subject):
        if problem := subject.onnx(path).problem:
            yield Problem(subject.relative(path), f"{problem}.")


@rule("HFX602", "error")
def opset(subject: Subject) -> Iterator[Problem]:
    """The opset is too new for the Triton release."""
    for _, path, facts in _readable(subject):
        yield from _too_new(subject, path, "opset", facts.opset, subject.release.opset)


@rule("HFX603", "error")
def ir_version(subject: Subject) -> Iterator[Problem]:
    """The IR version is too new for the Triton release."""
    for _, path, facts in _readable(subject):
        yield from _too_new(subject, path, "IR version", facts.ir, subject.release.ir)


def _too_new(subject: Subject, path: Path, kind: str, number: int, highest: int | None) -> Iterator[Problem]:
    release = subject.release
    if highest is not None and number > highest:
        runtime = f"ONNX Runtime {release.ort} of Triton {release.tag}"
        fix = f"Export for Triton {release.tag} (--triton {release.tag}), or serve with a newer one."
        yield Problem(subject.relative(path), f"has {kind} {number}, but {runtime} ends at {highest}.", fix=fix)


@rule("HFX604", "error", "Name the fp16 file by default_model_filename in the GPU configuration.")
def int8_on_gpu(subject: Subject) -> Iterator[Problem]:
    """An int8 file on a GPU."""
    for config, path, facts in _on_gpu(subject):
        operators = sorted(name for _, name in facts.operators if name in INT8_OPERATORS)
        if operators:
            names = ", ".join(operators[:3])
            message = f"runs the int8 file {path.name} on a GPU ({names}): those fall back to the CPU."
            yield Problem(config.path, message, _file_line(config))


@rule("HFX605", "warning", "Use a file of standard operators; ONNX Runtime fuses them itself when it loads one.")
def contrib_on_gpu(subject: Subject) -> Iterator[Problem]:
    """Operators of one runtime on a GPU."""
    for config, path, facts in _on_gpu(subject):
        contrib = {name for domain, name in facts.operators if domain in CONTRIB_DOMAINS}
        if operators := sorted(contrib - INT8_OPERATORS - FUSED_ON_GPU):
            message = f"runs {path.name} on a GPU, with operators of one runtime only: {', '.join(operators[:3])}."
            yield Problem(config.path, message, _file_line(config))


def _on_gpu(subject: Subject) -> Iterator[tuple[ConfigFile, Path, OnnxFacts]]:
    return (entry for entry in _readable(subject) if has_gpu(entry[0]))


def _file_line(config: ConfigFile) -> int | None:
    return config.line("default_model_filename") or config.line("KIND_GPU")


def _pairs(subject: Subject) -> Iterator[tuple[ConfigFile, str, Path, str, Any, OnnxTensor | None]]:
    """Yield each declared input (batch inputs included) and output with the file's tensor of that name."""
    for config, path, facts in _readable(subject):
        for tensor in config.message.input:
            yield config, "input", path, tensor.name, tensor, facts.inputs.get(tensor.name)
        for entry in config.message.batch_input:
            for name in entry.target_name:
                yield config, "batch_input", path, name, entry, facts.inputs.get(name)
        for tensor in config.message.output:
            yield config, "output", path, tensor.name, tensor, facts.outputs.get(tensor.name)


@rule("HFX606", "error", "Use the names of the ONNX graph.")
def unknown_tensor(subject: Subject) -> Iterator[Problem]:
    """A tensor that the ONNX file lacks."""
    for config, kind, path, name, _, actual in _pairs(subject):
        if actual is None:
            yield config.problem(f"{kind} {name!r} is not in {path.name}.", kind, name)


@rule("HFX607", "error", "Declare each input of the graph once, as input or batch_input.")
def tensor_count(subject: Subject) -> Iterator[Problem]:
    """The number of inputs is not the ONNX file's."""
    for config, path, facts in _readable(subject):
        added = sum(len(entry.target_name) for entry in config.message.batch_input)
        declared = len(config.message.input) + added
        if declared != len(facts.inputs):
            inputs = f"{len(facts.inputs)}: {', '.join(facts.inputs)}"
            message = f"declares {declared} inputs (batch inputs included), {path.name} has {inputs}."
            yield config.problem(message, "input")


@rule("HFX608", "error", "Declare the graph's data type.")
def data_type(subject: Subject) -> Iterator[Problem]:
    """Data types differ from the ONNX file's."""
    for config, kind, path, name, declared, actual in _pairs(subject):
        data_type = pb.DataType.Name(declared.data_type)
        if actual is not None and actual.data_type != data_type:
            message = f"{kind} {name!r} is {data_type}, but {actual.data_type} in {path.name}."
            yield config.problem(message, kind, name)


@rule(
    "HFX609", "error", "Declare the graph's dims; with max_batch_size > 0 its first one must be free, and is left out."
)
def dimensions(subject: Subject) -> Iterator[Problem]:
    """Dims differ from the ONNX file's."""
    for config, kind, path, name, declared, actual in _pairs(subject):
        if kind == "batch_input" or actual is None or actual.dims is None:
            continue
        if kind == "input" and declared.allow_ragged_batch:
            continue
        dims = config.shape(declared.reshape.shape if declared.HasField("reshape") else declared.dims)
        if not _describes(dims, actual.dims, kind):
            shapes = f"{list(dims)} (batch dimension included), but {list(actual.dims)} in {path.name}"
            yield config.problem(f"{kind} {name!r} has the shape {shapes}.", kind, name)


def _describes(declared: tuple[int, ...], actual: tuple[int, ...], kind: str) -> bool:
    """Return whether every shape that the configuration allows fits the graph.

    An output's dimension may also be fixed in the graph and free in the configuration.
    """
    if len(declared) != len(actual):
        return False
    return all(a in (d, -1) or (kind == "output" and d == -1) for d, a in zip(declared, actual, strict=True))


@rule(
    "HFX610",
    "error",
    "Triton concatenates ragged rows: the graph must take them flat, and their shapes by a batch_input.",
)
def ragged(subject: Subject) -> Iterator[Problem]:
    """A ragged input that the ONNX file doesn't take flat."""
    for config, kind, path, name, declared, actual in _pairs(subject):
        if kind == "input" and declared.allow_ragged_batch and actual is not None and actual.dims not in (None, (-1,)):
            message = f"the ragged input {name!r} has the shape {list(actual.dims or ())} in {path.name}, not [-1]."
            yield config.problem(message, kind, name)


@rule("HFX611", "error", "Add a batch_input, for example of kind BATCH_ITEM_SHAPE.")
def ragged_without_shape(subject: Subject) -> Iterator[Problem]:
    """Ragged inputs without a batch_input."""
    for config, path, _ in _readable(subject):
        names = [tensor.name for tensor in config.message.input if tensor.allow_ragged_batch]
        if names and not config.message.batch_input:
            message = f"{', '.join(names)} come flat into {path.name}, and no batch_input says where rows end."
            yield config.problem(message, "allow_ragged_batch")


@rule("HFX612", "error", "Make it required, and give it a value in the step before.")
def optional_input(subject: Subject) -> Iterator[Problem]:
    """An optional input of a batching ONNX model."""
    for _, _, config in subject.parsed():
        if backend_of(config) == "onnxruntime" and config.message.max_batch_size > 0:
            for name in (tensor.name for tensor in config.message.input if tensor.optional):
                message = f"the onnxruntime backend refuses the optional input {name!r} of a model that batches."
                yield config.problem(message, "input", name)


@rule("HFX613", "error", "Put the file into the same version folder, or export the model again.")
def external_data(subject: Subject) -> Iterator[Problem]:
    """External weights are not beside the ONNX file."""
    for _, path, facts in _readable(subject):
        for name in sorted(facts.external):
            if Path(name).is_absolute() or ".." in Path(name).parts or not (path.parent / name).is_file():
                yield Problem(subject.relative(path), f"keeps weights in {name!r}, which is not beside it.")


@rule("HFX615", "error", "Export the model again.")
def on_openvino(subject: Subject) -> Iterator[Problem]:
    """A model for OpenVINO."""
    for _, _, config in subject.parsed():
        accelerators = config.message.optimization.execution_accelerators.cpu_execution_accelerator
        if not has_gpu(config) and any(each.name == OPENVINO for each in accelerators):
            yield config.problem("needs OpenVINO, which hfx no longer runs.", OPENVINO)
