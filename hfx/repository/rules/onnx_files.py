"""Rules about ONNX files: whether the release can run them, and whether the configuration describes them.

What the configuration must say about an ONNX file is what ModelState's validation in
triton-inference-server/onnxruntime_backend, src/onnxruntime.cc, refuses otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from hfx.releases import Release
from hfx.repository.onnx_facts import OnnxFacts, OnnxTensor
from hfx.repository.rules.files import DEFAULT_FILES, backend_of
from hfx.repository.rules.scheduling import has_gpu
from hfx.repository.subject import ConfigFile, Problem, Subject

INT8_OPERATORS = {
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
}
CONTRIB_DOMAINS = {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}


def _configured(subject: Subject) -> Iterator[tuple[ConfigFile, Path]]:
    """Each configuration of the onnxruntime backend with the files that it runs."""
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


def unreadable(subject: Subject) -> Iterator[Problem]:
    """HFX601."""
    for _, path in _configured(subject):
        if problem := subject.onnx(path).problem:
            yield Problem(subject.relative(path), None, f"{problem}.", "Export the model again.")


def opset(subject: Subject) -> Iterator[Problem]:
    """HFX602."""
    release = subject.release
    for _, path, facts in _readable(subject):
        if release.opset is not None and facts.opset > release.opset:
            yield Problem(
                subject.relative(path),
                None,
                f"has opset {facts.opset}, but {_runtime(release)} ends at {release.opset}.",
                f"Export for Triton {release.tag} (--triton {release.tag}), or serve with a newer one.",
            )


def ir_version(subject: Subject) -> Iterator[Problem]:
    """HFX603."""
    release = subject.release
    for _, path, facts in _readable(subject):
        if release.ir is not None and facts.ir > release.ir:
            yield Problem(
                subject.relative(path),
                None,
                f"has IR version {facts.ir}, but {_runtime(release)} ends at {release.ir}.",
                f"Export for Triton {release.tag} (--triton {release.tag}), or serve with a newer one.",
            )


def _runtime(release: Release) -> str:
    return f"ONNX Runtime {release.ort} of Triton {release.tag}"


def int8_on_gpu(subject: Subject) -> Iterator[Problem]:
    """HFX604."""
    for config, path, facts in _readable(subject):
        found = sorted(name for _, name in facts.operators if name in INT8_OPERATORS)
        if found and has_gpu(config):
            yield Problem(
                config.path,
                config.line("default_model_filename") or config.line("KIND_GPU"),
                f"runs the int8 file {path.name} on a GPU ({', '.join(found[:3])}): those fall back to the CPU.",
                "Name the fp16 file by default_model_filename in the GPU configuration.",
            )


def contrib_on_gpu(subject: Subject) -> Iterator[Problem]:
    """HFX605."""
    for config, path, facts in _readable(subject):
        found = sorted(
            name for domain, name in facts.operators if domain in CONTRIB_DOMAINS and name not in INT8_OPERATORS
        )
        if found and has_gpu(config):
            yield Problem(
                config.path,
                config.line("default_model_filename") or config.line("KIND_GPU"),
                f"runs {path.name} on a GPU, with operators of one runtime only: {', '.join(found[:3])}.",
                "Use a file of standard operators; ONNX Runtime fuses them itself when it loads one.",
            )


def _pairs(subject: Subject) -> Iterator[tuple[ConfigFile, str, Path, str, Any, OnnxTensor | None]]:
    """Each declared input and output, batch inputs too, with the file's tensor of that name."""
    for config, path, facts in _readable(subject):
        for tensor in config.message.input:
            yield config, "input", path, tensor.name, tensor, facts.inputs.get(tensor.name)
        for entry in config.message.batch_input:
            for name in entry.target_name:
                yield config, "batch_input", path, name, entry, facts.inputs.get(name)
        for tensor in config.message.output:
            yield config, "output", path, tensor.name, tensor, facts.outputs.get(tensor.name)


def unknown_tensor(subject: Subject) -> Iterator[Problem]:
    """HFX606."""
    for config, kind, path, name, _, actual in _pairs(subject):
        if actual is None:
            yield Problem(
                config.path,
                config.line(kind, name),
                f"{kind} {name!r} is not in {path.name}.",
                "Use the names of the ONNX graph.",
            )


def tensor_count(subject: Subject) -> Iterator[Problem]:
    """HFX607."""
    for config, path, facts in _readable(subject):
        added = sum(len(entry.target_name) for entry in config.message.batch_input)
        declared = len(config.message.input) + added
        if declared != len(facts.inputs):
            yield Problem(
                config.path,
                config.line("input"),
                f"declares {declared} inputs (batch inputs included), {path.name} has {len(facts.inputs)}: "
                f"{', '.join(facts.inputs)}.",
                "Declare each input of the graph once, as input or batch_input.",
            )


def data_type(subject: Subject) -> Iterator[Problem]:
    """HFX608."""
    for config, kind, path, name, declared, actual in _pairs(subject):
        wanted = model_config_pb2.DataType.Name(declared.data_type)
        if actual is not None and actual.data_type != wanted:
            yield Problem(
                config.path,
                config.line(kind, name),
                f"{kind} {name!r} is {wanted}, but {actual.data_type} in {path.name}.",
                "Declare the graph's data type.",
            )


def dimensions(subject: Subject) -> Iterator[Problem]:
    """HFX609."""
    for config, kind, path, name, declared, actual in _pairs(subject):
        if (
            kind == "batch_input"
            or actual is None
            or actual.dims is None
            or getattr(declared, "allow_ragged_batch", False)
        ):
            continue
        batch = (-1,) if config.message.max_batch_size > 0 else ()
        dims = (*batch, *(declared.reshape.shape if declared.HasField("reshape") else declared.dims))
        if not _describes(dims, actual.dims, kind):
            yield Problem(
                config.path,
                config.line(kind, name),
                f"{kind} {name!r} has the shape {list(dims)} (batch dimension included), but {list(actual.dims)} in "
                f"{path.name}.",
                "Declare the graph's dims; with max_batch_size > 0 its first one must be free, and is left out.",
            )


def _describes(declared: tuple[int, ...], actual: tuple[int, ...], kind: str) -> bool:
    """Whether every shape that the configuration allows fits the graph; an output's may be narrower in either."""
    if len(declared) != len(actual):
        return False
    return all(a in (d, -1) or (kind == "output" and d == -1) for d, a in zip(declared, actual, strict=True))


def ragged(subject: Subject) -> Iterator[Problem]:
    """HFX610."""
    for config, kind, path, name, declared, actual in _pairs(subject):
        if kind == "input" and declared.allow_ragged_batch and actual is not None and actual.dims not in (None, (-1,)):
            yield Problem(
                config.path,
                config.line(kind, name),
                f"the ragged input {name!r} has the shape {list(actual.dims or ())} in {path.name}, not [-1].",
                "Triton concatenates ragged rows: the graph must take them flat, and their shapes by a batch_input.",
            )


def ragged_without_shape(subject: Subject) -> Iterator[Problem]:
    """HFX611."""
    for config, path, _ in _readable(subject):
        names = [tensor.name for tensor in config.message.input if tensor.allow_ragged_batch]
        if names and not config.message.batch_input:
            yield Problem(
                config.path,
                config.line("allow_ragged_batch"),
                f"{', '.join(names)} come flat into {path.name}, and no batch_input says where rows end.",
                "Add a batch_input, for example of kind BATCH_ITEM_SHAPE.",
            )


def optional_input(subject: Subject) -> Iterator[Problem]:
    """HFX612."""
    for _, _, config in subject.parsed():
        if backend_of(config) == "onnxruntime" and config.message.max_batch_size > 0:
            for tensor in config.message.input:
                if tensor.optional:
                    yield Problem(
                        config.path,
                        config.line("input", tensor.name),
                        f"the onnxruntime backend refuses the optional input {tensor.name!r} of a model that batches.",
                        "Make it required, and give it a value in the step before.",
                    )


def external_data(subject: Subject) -> Iterator[Problem]:
    """HFX613."""
    for _, path, facts in _readable(subject):
        for name in sorted(facts.external):
            if Path(name).is_absolute() or ".." in Path(name).parts or not (path.parent / name).is_file():
                yield Problem(
                    subject.relative(path),
                    None,
                    f"keeps weights in {name!r}, which is not beside it.",
                    "Put the file into the same version folder, or export the model again.",
                )
