"""Model configurations: typed values -> config.pbtxt text, and text -> Triton's own protobuf.

Dims never name the batch dimension; -1 is a dimension of any size. Field names and values are those of
triton-inference-server/common, protobuf/model_config.proto, as tritonclient ships it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any, Literal

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from hfx.errors import RepositoryError

MAX_CONFIG_BYTES = 1 << 20
LINE_WIDTH = 140  # a message that fits is printed in one line
# What a reader looks for first; protobuf's own order is by field number, which puts `backend` last.
FIELD_ORDER = (
    "name",
    "backend",
    "platform",
    "default_model_filename",
    "max_batch_size",
    "input",
    "batch_input",
    "output",
    "ensemble_scheduling",
    "dynamic_batching",
    "instance_group",
    "optimization",
    "parameters",
    "model_warmup",
)

Fill = Literal["zero", "random"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `optional` and `ragged` (allow_ragged_batch) are properties of inputs only."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A tensor that Triton's C++ backends add for each batch, for example kind BATCH_ITEM_SHAPE for ragged inputs."""

    kind: str
    target_name: str
    data_type: str
    source_input: str


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances of one kind: KIND_CPU, KIND_GPU, KIND_MODEL or KIND_AUTO."""

    kind: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """A FIFO queue that Triton cuts into batches.

    A full queue refuses at once; a request that waited longer than the timeout is rejected when the next batch is
    formed (timeout_action REJECT, protobuf's default). preferred_batch_size is left out on purpose: it makes small
    batches wait.
    """

    max_queue_size: int
    default_timeout_microseconds: int
    max_queue_delay_microseconds: int = 0


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """A warm-up tensor: zeros, random values, or the bytes of a file in the model's folder `warmup`."""

    data_type: str
    dims: tuple[int, ...]
    fill: Fill | str = "zero"


@dataclass(frozen=True, slots=True)
class Warmup:
    """One request of `batch_size` rows that Triton runs before it calls the model ready."""

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble. Both maps go from the member's tensor name to the ensemble's."""

    model_name: str
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


Accelerator = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that a config.pbtxt of hfx says. Exactly one of `backend` and `platform` ("ensemble") is set.

    `note` is a comment: lines for whoever edits the file.
    """

    name: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    backend: str = ""
    platform: str = ""
    default_model_filename: str = ""
    instance_groups: tuple[InstanceGroup, ...] = ()
    batching: DynamicBatching | None = None
    batch_inputs: tuple[BatchInput, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    cpu_accelerators: tuple[Accelerator, ...] = ()
    gpu_accelerators: tuple[Accelerator, ...] = ()
    warmups: tuple[Warmup, ...] = ()
    steps: tuple[EnsembleStep, ...] = ()
    decoupled: bool = False
    response_cache: bool = False
    latest_versions: int = 1
    note: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.backend) == bool(self.platform):
            raise RepositoryError(
                f"The configuration of {self.name!r} needs either a backend or a platform.",
                'Set backend="python" (or another one), or platform="ensemble" for an ensemble.',
            )


def to_protobuf(config: ModelConfig) -> Any:
    """The same configuration as Triton's inference.ModelConfig message.

    Raises RepositoryError for a data type, kind or number that Triton's protobuf doesn't have.
    """
    try:
        return _message(config)
    except (ValueError, TypeError) as error:
        raise RepositoryError(
            f"The configuration of {config.name!r} can't be written: {error}.",
            "Use the enum names of Triton's model_config.proto (TYPE_INT32, KIND_CPU, BATCH_ITEM_SHAPE, ...).",
        ) from error


def _message(config: ModelConfig) -> Any:
    return pb.ModelConfig(
        name=config.name,
        backend=config.backend,
        platform=config.platform,
        version_policy=pb.ModelVersionPolicy(latest={"num_versions": config.latest_versions}),
        max_batch_size=config.max_batch_size,
        default_model_filename=config.default_model_filename,
        input=[
            pb.ModelInput(
                name=i.name, data_type=i.data_type, dims=i.dims, optional=i.optional, allow_ragged_batch=i.ragged
            )
            for i in config.inputs
        ],
        output=[pb.ModelOutput(name=o.name, data_type=o.data_type, dims=o.dims) for o in config.outputs],
        batch_input=[
            pb.BatchInput(
                kind=b.kind, target_name=[b.target_name], data_type=b.data_type, source_input=[b.source_input]
            )
            for b in config.batch_inputs
        ],
        instance_group=[pb.ModelInstanceGroup(kind=g.kind, count=g.count) for g in config.instance_groups],
        dynamic_batching=_dynamic_batching(config.batching),
        optimization=_optimization(config),
        parameters={key: pb.ModelParameter(string_value=value) for key, value in config.parameters.items()},
        model_warmup=[_warmup(warmup) for warmup in config.warmups],
        ensemble_scheduling=_ensemble(config.steps),
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True) if config.decoupled else None,
        response_cache=pb.ModelResponseCache(enable=True) if config.response_cache else None,
    )


def _dynamic_batching(batching: DynamicBatching | None) -> Any:
    if batching is None:
        return None
    return pb.ModelDynamicBatching(
        max_queue_delay_microseconds=batching.max_queue_delay_microseconds,
        default_queue_policy=pb.ModelQueuePolicy(
            timeout_action="REJECT",
            max_queue_size=batching.max_queue_size,
            default_timeout_microseconds=batching.default_timeout_microseconds,
        ),
    )


def _optimization(config: ModelConfig) -> Any:
    if not (config.cpu_accelerators or config.gpu_accelerators):
        return None
    accelerator = pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator
    return pb.ModelOptimizationPolicy(
        execution_accelerators=pb.ModelOptimizationPolicy.ExecutionAccelerators(
            cpu_execution_accelerator=[accelerator(name=n, parameters=dict(p)) for n, p in config.cpu_accelerators],
            gpu_execution_accelerator=[accelerator(name=n, parameters=dict(p)) for n, p in config.gpu_accelerators],
        )
    )


def _warmup(warmup: Warmup) -> Any:
    inputs = {}
    for name, tensor in warmup.inputs.items():
        is_generated = tensor.fill in ("zero", "random")
        source: dict[str, object] = {f"{tensor.fill}_data": True} if is_generated else {"input_data_file": tensor.fill}
        inputs[name] = pb.ModelWarmup.Input(data_type=tensor.data_type, dims=tensor.dims, **source)
    return pb.ModelWarmup(name=warmup.name, batch_size=warmup.batch_size, inputs=inputs)


def _ensemble(steps: tuple[EnsembleStep, ...]) -> Any:
    if not steps:
        return None
    step = pb.ModelEnsembling.Step
    return pb.ModelEnsembling(
        step=[
            step(model_name=s.model_name, model_version=-1, input_map=dict(s.input_map), output_map=dict(s.output_map))
            for s in steps
        ]
    )


def render(config: ModelConfig, made_by: str) -> str:
    """The text of config.pbtxt: comments (the command `made_by`, the note), then every field of `config`."""
    return render_message(to_protobuf(config), (f"Made by: {made_by}", *config.note))


def render_message(message: Any, comments: Sequence[str]) -> str:
    """The text of an inference.ModelConfig below `comments`; parsing it gives `message` back.

    Fields that hold protobuf's default (false, 0, REJECT) are left out, except max_batch_size: whether a model batches
    must be readable.
    """
    text = text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True)
    blocks = _fold(line.strip() for line in text.splitlines())
    if not message.max_batch_size:
        blocks.append("max_batch_size: 0")
    return "\n".join([*map(_comment, comments), *sorted(blocks, key=_position)]) + "\n"


def _comment(line: str) -> str:
    return "# " + "".join(character if character.isprintable() else " " for character in line)


def _fold(lines: Iterator[str]) -> list[str]:
    """The fields up to the closing brace, each message on one line when it fits and indented otherwise."""
    blocks: list[str] = []
    for line in lines:
        if line == "}":
            break
        if line.endswith("{"):
            inner = _fold(lines)
            flat = " ".join([line, *inner, "}"])
            fits = len(flat) <= LINE_WIDTH and "\n" not in flat
            line = flat if fits else "\n".join([line, *(indent(block, "  ") for block in inner), "}"])
        blocks.append(line)
    return blocks


def _position(block: str) -> int:
    name = block.replace(":", " ").split(maxsplit=1)[0]
    return FIELD_ORDER.index(name) if name in FIELD_ORDER else len(FIELD_ORDER)


def parse_config(text: str) -> Any:
    """Triton's inference.ModelConfig message of a config.pbtxt.

    Raises RepositoryError with line and column for text that is not one; protobuf's ParseError is its cause.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise RepositoryError(
            f"The configuration is larger than {MAX_CONFIG_BYTES} characters.", "A config.pbtxt is a few kilobytes."
        )
    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise RepositoryError(
            f"The configuration can't be parsed: {str(error).rstrip('.')}.",
            "Correct the line, or export the model again.",
        ) from error
    except (ValueError, RecursionError) as error:  # characters that are no Unicode, and the like
        raise RepositoryError(
            f"The configuration can't be parsed: {error}.", "Write it as UTF-8 text in protobuf's text format."
        ) from error
