"""Model configurations: writing typed values as the text of config.pbtxt, and parsing it to Triton's own protobuf.

Dims never include the batch dimension; -1 is a dimension of any size. Field names and values follow
triton-inference-server/common, protobuf/model_config.proto, as tritonclient ships it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

from google.protobuf import text_format

from hfx.errors import RepositoryError
from hfx.repository.model_config import pb

CONFIG = "config.pbtxt"
VARIANTS = "configs"  # MODEL/configs/NAME.pbtxt, chosen by --model-config-name
MADE_BY = "Made by: "  # in the first comment
MAX_CONFIG_BYTES = 1 << 20
LINE_WIDTH = 140  # a message that fits is printed on one line
# The fields that a reader looks for come first; protobuf's own order is by field number, which puts `backend` last.
FIELD_ORDER = (
    "name", "backend", "platform", "default_model_filename", "max_batch_size", "input", "batch_input", "output",
    "ensemble_scheduling", "dynamic_batching", "instance_group", "optimization", "parameters", "model_warmup",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. Only inputs can be `optional` and `ragged` (allow_ragged_batch)."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """A warm-up tensor: zeros, or the bytes of `file` in the model's folder `warmup`."""

    data_type: str
    dims: tuple[int, ...]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Warmup:
    """One request with one row, which Triton runs before it reports the model as ready."""

    name: str
    inputs: Mapping[str, WarmupInput]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble. Both maps go from the member's tensor name to the ensemble's."""

    model_name: str
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The contents of a config.pbtxt of hfx; a model without a `backend` is an ensemble of `steps`.

    `instance_kind` is KIND_CPU for one instance on the CPU, or KIND_GPU for one instance on each GPU, or with `one_gpu`
    only on the first; if it is empty, Triton decides. `batching` puts Triton's dynamic batcher before the model.
    `item_shapes` maps the name of each tensor that Triton adds to a batch to the ragged input whose rows' shapes the
    tensor holds. `note` has the lines of a comment for readers of the file.
    """

    name: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    backend: str = ""
    default_model_filename: str = ""
    instance_kind: str = ""
    one_gpu: bool = False
    batching: bool = False
    item_shapes: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    warmups: tuple[Warmup, ...] = ()
    steps: tuple[EnsembleStep, ...] = ()
    decoupled: bool = False
    note: tuple[str, ...] = ()


def to_protobuf(config: ModelConfig) -> Any:
    """Convert `config` to Triton's inference.ModelConfig message."""
    return pb.ModelConfig(
        name=config.name,
        backend=config.backend,
        platform="" if config.backend else "ensemble",
        version_policy=pb.ModelVersionPolicy(latest={"num_versions": 1}),
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
            pb.BatchInput(kind="BATCH_ITEM_SHAPE", target_name=[target], data_type="TYPE_INT32", source_input=[source])
            for target, source in config.item_shapes.items()
        ],
        instance_group=[_instance_group(config)] if config.instance_kind else [],
        # No preferred_batch_size, as smaller batches would be delayed until they reach it. There is no queue policy,
        # because with a queue size or a timeout, Triton prepares no batch in advance and misses the moment when the
        # model is free again. Under any load, some requests then wait for 0.5 s (measured on 2.51; fixed in 26.08, core
        # #509). The tokenizing step bounds the queues.
        dynamic_batching=pb.ModelDynamicBatching(default_queue_policy={}) if config.batching else None,
        parameters={key: pb.ModelParameter(string_value=value) for key, value in config.parameters.items()},
        model_warmup=[_warmup(warmup) for warmup in config.warmups],
        ensemble_scheduling=pb.ModelEnsembling(step=map(_step, config.steps)) if config.steps else None,
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True) if config.decoupled else None,
    )


def _instance_group(config: ModelConfig) -> Any:
    return pb.ModelInstanceGroup(kind=config.instance_kind, count=1, gpus=[0] if config.one_gpu else [])


def _warmup(warmup: Warmup) -> Any:
    inputs = {}
    for name, tensor in warmup.inputs.items():
        source: dict[str, object] = {"input_data_file": tensor.file} if tensor.file else {"zero_data": True}
        inputs[name] = pb.ModelWarmup.Input(data_type=tensor.data_type, dims=tensor.dims, **source)
    return pb.ModelWarmup(name=warmup.name, batch_size=1, inputs=inputs)


def _step(step: EnsembleStep) -> Any:
    maps = {"input_map": dict(step.input_map), "output_map": dict(step.output_map)}
    return pb.ModelEnsembling.Step(model_name=step.model_name, model_version=-1, **maps)


def render(config: ModelConfig, made_by: str) -> str:
    """Return the text of config.pbtxt: comments (the command `made_by`, the note), then every field of `config`."""
    return render_message(to_protobuf(config), (f"{MADE_BY}{made_by}", *config.note))


def made_by(text: str) -> str:
    """Return the command that the text of a rendered configuration names; empty if it names none."""
    head = text.partition("\n")[0].removeprefix("# ")
    return head.removeprefix(MADE_BY) if head.startswith(MADE_BY) else ""


def render_message(message: Any, comments: Sequence[str]) -> str:
    """Return the text of an inference.ModelConfig below `comments`. Parsing the text returns `message` again.

    Fields with protobuf's default value (false, 0, REJECT) are left out, except max_batch_size, so that a reader sees
    whether the model batches.
    """
    text = text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True)
    blocks = _fold(line.strip() for line in text.splitlines())
    if not message.max_batch_size:
        blocks.append("max_batch_size: 0")
    return "\n".join([*map(_comment, comments), *sorted(blocks, key=_position)]) + "\n"


def _comment(line: str) -> str:
    return "# " + "".join(character if character.isprintable() else " " for character in line)


def _fold(lines: Iterator[str]) -> list[str]:
    """Return the fields up to the closing brace, each message on one line if it fits, and indented otherwise."""
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


def config_path(folder: Path, device: str) -> Path:
    """Return the configuration file of the model in `folder` that a server with --model-config-name=DEVICE uses."""
    chosen = folder / VARIANTS / f"{device}.pbtxt"
    return chosen if chosen.is_file() else folder / CONFIG


def parse_config(text: str) -> Any:
    """Parse the text of a config.pbtxt to Triton's inference.ModelConfig message.

    Raises RepositoryError with line and column for any other text; its cause is protobuf's ParseError.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise RepositoryError(
            f"The configuration is larger than {MAX_CONFIG_BYTES} characters.", "A config.pbtxt is a few kilobytes."
        )
    try:
        return text_format.Parse(text, pb.ModelConfig())
    except (text_format.ParseError, ValueError, RecursionError) as error:  # ValueError: not Unicode
        raise RepositoryError(
            f"The configuration can't be parsed: {str(error).rstrip('.')}.",
            "Correct the line, or export the model again.",
        ) from error
