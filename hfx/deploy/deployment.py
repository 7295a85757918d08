"""Deployment: the checked values that every target renders. Targets don't check them again.

Names, images and numbers come from a command line, manifests from a folder of unknown origin. Everything that is
written to Dockerfiles, YAML files and shell lines is checked here for characters that one of them can't hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hfx.deploy.arch import MACHINES, check_library, this_arch
from hfx.deploy.options import NAME_PATTERN, Arch, check_range
from hfx.errors import ModelCorrupt, UsageError
from hfx.manifest import Manifest
from hfx.names import NET_SUFFIX, STREAM_SUFFIX, check_name
from hfx.native.build import MACHINE
from hfx.python_backends.onnxruntime.config import MODEL_FILE, ROWS_FILE
from hfx.releases import MINIMUM_SECURE, Release, release, security_warning
from hfx.repository import model, parse_config
from hfx.repository.config_pbtxt import MAX_CONFIG_BYTES, config_path
from hfx.strict_json import read_text
from hfx.triton import one_hop
from hfx.triton.models import check_model

# The resources of a model


DEVICES = ("cpu", "gpu")
CUDA_13_TAG = "25.08"  # the first release with CUDA 13, which onnxruntime-gpu's wheels need
ELEMENT_BYTES = {"float32": 4, "float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """The resources of one model on a device."""

    threads: int  # the most threads with which one of its steps computes
    weights: int  # bytes of the files that the device's runtime reads
    cache: int  # the most bytes of the KV cache: all slots and the prefix cache; 0 for encoders
    processes: int  # Python processes
    slots: int  # 0 for encoders
    queue: int  # max_queue_size; 0 for encoders
    batch: int  # max_batch_size; 0 for generators


def config_of(repository: Path, folder: str, device: str) -> Any:
    """Return the configuration (protobuf) of the model folder `folder` on a server with `device`."""
    return parse_config(read_text(config_path(repository / folder, device), MAX_CONFIG_BYTES))


def needs(repository: Path, manifest: Manifest, device: str, tag: str, machine: str = MACHINE) -> ModelNeeds:
    """Return the resources that a published model needs on `device` in the Triton release `tag`.

    `machine` is the processor, as platform.machine() names it.
    Raises UsageError if the model was not exported for the device or needs OpenVINO, and ModelCorrupt for a generator
    without its engine.
    """
    if getattr(manifest.precision, device) is None:
        raise UsageError(
            f"The model {manifest.name!r} was not exported for {device}.",
            f"Export it with --device {device}, or deploy it with --device {_other(device)}.",
        )
    configs = {folder: config_of(repository, folder, device) for folder in manifest.folders}
    net, stream = (configs.get(manifest.name + suffix) for suffix in (NET_SUFFIX, STREAM_SUFFIX))
    if device == "cpu" and net and net.optimization.execution_accelerators.cpu_execution_accelerator:
        raise UsageError(f"{manifest.name!r} needs OpenVINO, which hfx no longer runs.", "Export the model again.")
    slots, queue = (_number(stream, "slots"), _number(stream, "max_queue_size")) if stream else (0, 0)
    can_be_native = device == "cpu" or tag >= CUDA_13_TAG
    is_native = can_be_native and not one_hop.why_not(repository, manifest.name, device, machine)
    return ModelNeeds(
        threads=max(_number(config, "intra_op_thread_count") for config in configs.values()) or 1,
        weights=sum(entry.size for path, entry in manifest.files.items() if not is_others(path, net, device)),
        cache=slots
        and _cache(repository, manifest, stream, device, slots) + (_number(stream, "prefix_cache_mb") << 20),
        processes=0 if is_native else sum(config.backend == "python" for config in configs.values()),
        slots=slots,
        queue=queue,
        batch=0 if stream else int(configs[manifest.name].max_batch_size),
    )


def _number(config: Any, parameter: str) -> int:
    """Return an integer parameter of a configuration; 0 if it is missing or not an integer."""
    text = config.parameters[parameter].string_value if parameter in config.parameters else ""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else 0


def is_others(path: str, net: Any, device: str) -> bool:
    """Return whether only the other device reads the file at `path`: its engine, or a graph other than that of `net`.

    `net` is the configuration of an encoder's NAME_net for `device`, or None for a generator.
    """
    file = PurePosixPath(path)
    if net is not None and file.parts[0] == net.name:
        named = [net.parameters[key].string_value for key in (MODEL_FILE, ROWS_FILE) if key in net.parameters]
        served = {net.default_model_filename, *named}
        return ".onnx" in file.suffixes and file.name.removesuffix(".data") not in served
    return _other(device) in file.parts[2:-1]


def _cache(repository: Path, manifest: Manifest, stream: Any, device: str, slots: int) -> int:
    """Return the bytes of the KV cache when all slots are full, according to engine.json."""
    from hfx.python_backends.engine.spec import NATIVE, read_spec
    from hfx.python_backends.errors import EngineError

    folder = repository / (manifest.name + STREAM_SUFFIX) / "1" / device
    try:
        spec = read_spec(folder)
    except (EngineError, OSError) as error:
        raise ModelCorrupt(
            f"The engine of {manifest.name!r} can't be read: {error}.", "Export the model again with --force."
        ) from error
    runtime = stream.parameters["cpu_runtime"].string_value if device == "cpu" else ""
    own = spec.operators.kv_type if runtime == NATIVE and spec.operators else spec.kv_type
    cross = ELEMENT_BYTES[spec.cross_type] if spec.has_encoder else 0
    per_position = 2 * slots * spec.layers * spec.kv_heads * spec.head_dim
    return per_position * (spec.max_length * ELEMENT_BYTES[own] + spec.max_source * cross)


def _other(device: str) -> str:
    return DEVICES[1 - DEVICES.index(device)]


# The deployment


NAME_LENGTH = 50  # a DNS label has up to 63 characters, and platforms append to it
_IMAGE_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
IMAGE_PATTERN = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?{_IMAGE_PART}(?:/{_IMAGE_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
IMAGE_LENGTH = 512
LARGEST_DRAIN = 3600
LARGEST_CPUS = 1024
MEMORY_STEP = 64 << 20

# Resident memory of a server without models, and of a Python process with its libraries. While idle, the embedded
# Triton 2.51 used less (the server 40 MiB; a process 36 to 55 MiB, and 100 MiB more with a runtime), but requests need
# memory, too.
SERVER_BYTES = 256 << 20
PROCESS_BYTES = 128 << 20
SHARED_BYTES = 1 << 30  # size of /dev/shm if a model has Python processes
LEAST_SHARED_BYTES = 64 << 20  # size of /dev/shm if none has; docker's own default
# Size of /tmp (logs, sockets, copies of small files), which `docker` and `compose` keep in memory.
TEMPORARY_BYTES = 256 << 20
# Bodies of requests in flight, which are held twice: in the front and in tritonserver. The front accepts at most 256
# MiB of bodies at a time (16 of the largest size), or an eighth of the container's memory if that is less. Copies in
# /dev/shm count towards SHARED_BYTES.
BODIES_BYTES = 2 * (256 << 20)
WEIGHT_COPIES = 2  # the file while it is read, and the runtime's own copy


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its source. Manifests repeat the source in a comment."""

    value: int
    source: str


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports inside the container: of the front (`http`) and of Triton (`grpc`).

    At `scrapes`, the front has only /metrics and /health, if the target opens that port. `http` always has them, too.
    """

    http: int = 8000
    grpc: int = 8001
    scrapes: int = 8003


@dataclass(frozen=True, slots=True)
class DeployedModel:
    """A published model, its precision on the device, and the resources that it needs there."""

    manifest: Manifest
    precision: str
    needs: ModelNeeds

    @property
    def name(self) -> str:
        """The NAME under which the model was published."""
        return self.manifest.name

    @property
    def is_generator(self) -> bool:
        """Whether the model generates text, so that an engine with slots serves it."""
        return self.needs.slots > 0

    @property
    def is_native(self) -> bool:
        """Whether the model is an encoder that a single C++ model serves, without Python processes."""
        return not self.is_generator and self.needs.processes == 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Published models of one repository, for one device, one processor and one Triton release.

    `name` is a DNS label. `cpus` is in processors; `memory` and `shared_memory` are in bytes.
    `drain` is the time in seconds for requests in flight when the server ends.
    """

    name: str
    repository: Path
    models: tuple[DeployedModel, ...]
    device: str
    arch: Arch
    release: Release
    image: str
    cpus: Figure
    memory: Figure
    shared_memory: Figure
    drain: int
    ports: Ports = Ports()

    @property
    def names(self) -> tuple[str, ...]:
        """The NAMEs of the models, sorted."""
        return tuple(each.name for each in self.models)

    @property
    def machine(self) -> str:
        """The processor as platform.machine() and wheels name it."""
        return MACHINES[self.arch]

    @property
    def platform(self) -> str:
        """The processor as docker's option --platform names it."""
        return f"linux/{self.arch}"

    @property
    def secret(self) -> str:
        """A value that callers don't know, for Triton's options that restrict APIs.

        Equal model files give equal values.
        """
        files = sorted(entry.sha256 for each in self.models for entry in each.manifest.files.values())
        return hashlib.sha256(" ".join(files).encode()).hexdigest()[:32]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Messages about known vulnerabilities of the release."""
        warning = security_warning(self.release.tag)
        return (f"{warning} Deploy {MINIMUM_SECURE}.",) if warning else ()


def open_deployment(
    repository: Path,
    names: Sequence[str],
    *,
    device: str = "cpu",
    arch: Arch | None = None,
    triton: str = MINIMUM_SECURE,
    name: str = "",
    image: str = "",
    cpus: int | None = None,
    drain: int = 30,
) -> Deployment:
    """Return the deployment of the published models `names`. All of their files are compared with their manifests.

    `arch` None means the processor of this machine. Raises UsageError for an invalid value,
    ModelMissing, and ModelCorrupt for a model that is not as it was published.
    """
    if device not in DEVICES:
        raise UsageError(f"{device!r} is not a device.", "Give cpu or gpu.")
    check_range("--drain", drain, 0, LARGEST_DRAIN)
    check_range("--cpus", cpus, 1, LARGEST_CPUS)
    tag, arch = release(triton), arch or this_arch()
    models = tuple(_deployed(repository, check_name(each), device, arch, tag) for each in sorted(set(names)))
    if not models:
        raise UsageError("No model is named.", "Give the NAME of at least one; `hfx list` shows them.")
    shared = _shared_memory(models)
    return Deployment(
        name=check_deployment_name(name or default_name(models[0].name)),
        repository=repository,
        models=models,
        device=device,
        arch=arch,
        release=tag,
        image=check_image(image or tag.hfx_image(device)),
        cpus=_cpus(models, cpus),
        memory=_memory(models, shared.value),
        shared_memory=shared,
        drain=drain,
    )


def _deployed(repository: Path, name: str, device: str, arch: Arch, triton: Release) -> DeployedModel:
    manifest = model(repository, name)
    check_model(manifest, repository)
    check_library(manifest, arch)
    if triton.tag < (minimum := manifest.triton.minimum):
        raise UsageError(
            f"The model {name!r} needs Triton {minimum}; {triton.tag} is older.",
            f"Use --triton {max(minimum, MINIMUM_SECURE)}.",
        )
    model_needs = needs(repository, manifest, device, triton.tag, MACHINES[arch])
    return DeployedModel(manifest, getattr(manifest.precision, device), model_needs)


def _cpus(models: Sequence[DeployedModel], requested: int | None) -> Figure:
    if requested is not None:
        return Figure(requested, "--cpus")
    threads = max(each.needs.threads for each in models)
    return Figure(threads, "the threads that the largest step of a model computes with (intra_op_thread_count)")


def _shared_memory(models: Sequence[DeployedModel]) -> Figure:
    if any(each.needs.processes for each in models):
        source = "Triton's Python processes exchange tensors in it; each region grows with its requests"
        return Figure(SHARED_BYTES, source)
    return Figure(LEAST_SHARED_BYTES, "no model has Python processes, which would exchange tensors in it")


def _memory(models: Sequence[DeployedModel], shared: int) -> Figure:
    weights = sum(each.needs.weights for each in models)
    cache = sum(each.needs.cache for each in models)
    processes = sum(each.needs.processes for each in models)
    total = SERVER_BYTES + WEIGHT_COPIES * weights + cache + PROCESS_BYTES * processes
    source = (
        f"Triton {mib(SERVER_BYTES)} + {WEIGHT_COPIES} x files of {mib(weights)} + K/V {mib(cache)}"
        f" + {processes} Python processes of {mib(PROCESS_BYTES)}"
    )
    return with_requests(total, shared, source, "an estimate: compare it with what yours takes")


def with_requests(models: int, shared: int, source: str, note: str) -> Figure:
    """Return the memory of a container whose models need `models` bytes, with room for requests and /tmp.

    `shared` is the size of /dev/shm, in bytes, which counts towards the container's memory.
    """
    total = -(-(models + BODIES_BYTES + shared + TEMPORARY_BYTES) // MEMORY_STEP) * MEMORY_STEP
    beside = f"{mib(BODIES_BYTES)} of requests, {mib(shared)} of /dev/shm, {mib(TEMPORARY_BYTES)} of a /tmp in memory"
    return Figure(total, f"{source}; + {beside}; {note}")


def mib(size: int) -> str:
    """Format `size` bytes in MiB, rounded up."""
    return f"{-(-size // (1 << 20))} MiB"


# Checks of the user's input


def default_name(model_name: str) -> str:
    """Return the default name of a deployment: the model's name as a DNS label."""
    return model_name.replace("_", "-")[:NAME_LENGTH].rstrip("-")


def check_deployment_name(name: str) -> str:
    """Return `name`. Raises UsageError unless it is a DNS label of at most NAME_LENGTH characters."""
    if len(name) > NAME_LENGTH or not NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} can't be a deployment's name.",
            f"Use lower-case letters, digits and '-' inside, at most {NAME_LENGTH} characters.",
        )
    return name


def check_image(image: str) -> str:
    """Return `image`. Raises UsageError unless it is a reference to a container image."""
    if len(image) > IMAGE_LENGTH or not IMAGE_PATTERN.fullmatch(image):
        raise UsageError(
            f"{image!r} is not a container image.", "Give REGISTRY/NAME:TAG or NAME@sha256:DIGEST, as docker takes it."
        )
    return image
