"""What a published model says of itself before any server runs it: its tensors, precision and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.errors import RepositoryError
from hfx.manifest import Manifest
from hfx.metadata import ModelMetadata, TensorMetadata
from hfx.repository.catalog import model
from hfx.repository.config import MAX_CONFIG_BYTES, parse_config
from hfx.strict_json import read_text

SERVER_BYTES = 512 << 20  # of a Triton with its Python processes, without weights
WEIGHTS_FACTOR = 2.0  # a runtime that rearranges weights holds them twice while it loads


def metadata(repository: Path, name: str) -> ModelMetadata:
    """What the model takes and gives, as its server would say. Raises ModelMissing and ModelCorrupt."""
    manifest = model(repository, name)
    config = parse_config(read_text(repository / name / "config.pbtxt", MAX_CONFIG_BYTES))
    inputs, outputs = (tuple(map(_tensor, tensors)) for tensors in (config.input, config.output))
    return ModelMetadata(name, inputs, outputs, str(manifest.task))


def built_precision(manifest: Manifest, device: str) -> str:
    """The precision of the model's files for DEVICE. Raises RepositoryError where it has none."""
    precision = precision_on(manifest, device)
    if precision is None:
        raise RepositoryError(f"{manifest.name} was not built for {device.upper()}", "Export it with --device both.")
    return precision


def precision_on(manifest: Manifest, device: str) -> str | None:
    """The precision of the model's files for DEVICE, None where it has none."""
    return manifest.precision.gpu if device == "gpu" else manifest.precision.cpu


def memory_needed(manifest: Manifest, device: str) -> int:
    """Roughly the bytes that a server of the model takes: the files of the other device are not loaded."""
    other = "gpu" if device == "cpu" else "cpu"
    half = device == "cpu" and manifest.precision.cpu != "fp16"
    loaded = (
        entry.size
        for path, entry in manifest.files.items()
        if f"/{other}/" not in path and not (half and ".fp16." in path)
    )
    return SERVER_BYTES + round(WEIGHTS_FACTOR * sum(loaded))


def _tensor(spec: Any) -> TensorMetadata:
    """A tensor of a configuration, by the names of the protocol: TYPE_STRING is BYTES there."""
    field = spec.DESCRIPTOR.fields_by_name["data_type"]
    kind = field.enum_type.values_by_number[spec.data_type].name.removeprefix("TYPE_")
    return TensorMetadata(spec.name, "BYTES" if kind == "STRING" else kind, tuple(spec.dims))
