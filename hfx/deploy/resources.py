"""What a published model needs while it is served: processors and memory, with where each figure comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hfx.errors import ModelCorrupt, UsageError
from hfx.manifest import Manifest
from hfx.names import NET_SUFFIX, STREAM_SUFFIX
from hfx.python_backends.onnxruntime.config import MODEL_FILE
from hfx.repository import parse_config
from hfx.repository.config_pbtxt import MAX_CONFIG_BYTES
from hfx.repository.subject import CONFIG, VARIANTS
from hfx.strict_json import read_text

DEVICES = ("cpu", "gpu")
ELEMENT_BYTES = {"float32": 4, "f32": 4, "float16": 2, "f16": 2, "int8": 1, "u8": 1}


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What one model needs on a device.

    `threads` is the largest number of threads that one of its steps computes with, `weights` the bytes of the files
    that the device's runtime reads, `cache` the bytes that K and V take at most, of all slots and of a prefix cache (0
    for encoders), and `processes` the number of its Python processes. `slots` and `queue` are a generator's (0 for
    encoders), `batch` is the largest batch of an encoder's net (0 for generators).
    """

    threads: int
    weights: int
    cache: int
    processes: int
    slots: int
    queue: int
    batch: int


def config_of(repository: Path, folder: str, device: str) -> Any:
    """The configuration message that a server of DEVICE uses for `folder`."""
    chosen = repository / folder / VARIANTS / f"{device}.pbtxt"
    path = chosen if chosen.is_file() else repository / folder / CONFIG
    return parse_config(read_text(path, MAX_CONFIG_BYTES))


def needs(repository: Path, manifest: Manifest, device: str) -> ModelNeeds:
    """What the model of `manifest` needs on `device`.

    Raises UsageError for a model that was not built for the device, ModelCorrupt for a generator without its engine.
    """
    if getattr(manifest.precision, device) is None:
        raise UsageError(
            f"The model {manifest.name!r} was not exported for {device}.",
            f"Export it with --device {device}, or deploy it with --device {_other(device)}.",
        )
    configs = {folder: config_of(repository, folder, device) for folder in manifest.folders}
    stream = configs.get(manifest.name + STREAM_SUFFIX)
    slots, queue = (_number(stream, "slots"), _number(stream, "max_queue_size")) if stream else (0, 0)
    return ModelNeeds(
        threads=max(_number(config, "intra_op_thread_count") for config in configs.values()) or 1,
        weights=_weights(manifest, configs, device),
        cache=slots
        and _cache(repository, manifest, stream, device, slots) + (_number(stream, "prefix_cache_mb") << 20),
        processes=sum(config.backend == "python" for config in configs.values()),
        slots=slots,
        queue=queue,
        batch=net.max_batch_size if (net := configs.get(manifest.name + NET_SUFFIX)) else 0,
    )


def _number(config: Any, parameter: str) -> int:
    """An integer parameter of a configuration; 0 where it has none."""
    text = config.parameters[parameter].string_value if parameter in config.parameters else ""
    return int(text) if text.isascii() and text.isdecimal() else 0


def _weights(manifest: Manifest, configs: dict[str, Any], device: str) -> int:
    """The bytes of all files but those that only the other device reads."""
    net = configs.get(manifest.name + NET_SUFFIX)
    return sum(entry.size for path, entry in manifest.files.items() if not is_others(path, net, device))


def is_others(path: str, net: Any, device: str) -> bool:
    """Whether only the other device reads the file at `path`: an engine's folder, or another graph than `net` has.

    `net` is the configuration of an encoder's NAME_net for `device`, None for a generator.
    """
    file = PurePosixPath(path)
    if net is not None and file.parts[0] == net.name:
        served = net.parameters[MODEL_FILE].string_value if MODEL_FILE in net.parameters else net.default_model_filename
        return ".onnx" in file.suffixes and file.name.removesuffix(".data") != served
    return _other(device) in file.parts[2:-1]


def _cache(repository: Path, manifest: Manifest, stream: Any, device: str, slots: int) -> int:
    """The bytes of K and V when every slot is full, from engine.json."""
    from hfx.python_backends.engine.errors import EngineError
    from hfx.python_backends.engine.spec import NATIVE, OPENVINO, read_spec

    folder = repository / (manifest.name + STREAM_SUFFIX) / "1" / device
    try:
        spec = read_spec(folder)
    except (EngineError, OSError) as error:
        raise ModelCorrupt(
            f"The engine of {manifest.name!r} can't be read: {error}.", "Export the model again with --force."
        ) from error
    runtime = stream.parameters["cpu_runtime"].string_value if device == "cpu" else ""
    own, cross = spec.kv_type, spec.cross_type
    if runtime == OPENVINO and spec.openvino:
        own = cross = spec.openvino.kv_type
    if runtime == NATIVE and spec.operators:
        own = spec.operators.kv_type
    position = 2 * slots * spec.layers * spec.kv_heads * spec.head_dim
    return position * (spec.max_length * ELEMENT_BYTES[own] + spec.max_source * ELEMENT_BYTES.get(cross, 0))


def _other(device: str) -> str:
    return DEVICES[1 - DEVICES.index(device)]
