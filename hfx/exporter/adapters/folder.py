"""Find the adapters and heads in a folder of folders, and read a LoRA adapter as peft saves it.

An adapter's tensors are untrusted: sizes, names, ranks and values are checked before anything uses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, UsageError
from hfx.exporter.adapters.adapter_config import ADAPTER_CONFIG, MERGE, AdapterConfig, read_adapter_config
from hfx.exporter.checkpoint_files import checked_weights, stored_shapes
from hfx.exporter.config_file import AGAIN, read_config
from hfx.exporter.graph.blocks import FloatArray
from hfx.exporter.source import Checkpoint, link_root, refuse_special_files
from hfx.exporter.tensors import CheckpointTensors
from hfx.names import check_name

WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
CONFIG = "config.json"
MAX_BYTES = 2 << 30
MAX_TENSORS = 10_000  # an adapter of all linears of BERT large has 288
MAX_HEADER_BYTES = 4 << 20  # safetensors itself allows 100 MB
PREFIX = "base_model.model."  # of all names in peft's file
FACTOR = re.compile(r"(.+)\.lora_([AB])\.weight")
# Parts of the names that peft gives to tensors of other methods.
OTHER_TENSORS = {
    "lora_embedding_": "is of an adapted embedding",
    "lora_magnitude_vector": "is of DoRA",
    "lora_B.bias": "is a bias of a product (lora_bias)",
    "base_layer": "is a whole weight of an adapted module",
    "lora_": "has no name that peft gives to the factors of a plain LoRA adapter",
}
STORED_AS = re.compile(r"\.modules_to_save\.default(?=\.)")  # in files that were not written by save_pretrained
NAME = re.compile(r"[\w.-]{1,200}", re.ASCII)

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LowRank:
    """The change B A of a linear layer's weight.

    `a` is float32 [rank, inputs]. `b` is float32 [outputs, rank], with the adapter's scale multiplied in.
    """

    a: FloatArray
    b: FloatArray

    @property
    def rank(self) -> int:
        """The number of rows of `a` and of columns of `b`."""
        return self.a.shape[0]


@dataclass(frozen=True, eq=False)
class Adapter:
    """What one model has besides the backbone: a LoRA adapter (read_adapter) or a head (read_head).

    `task_type` is SEQ_CLS, TOKEN_CLS, FEATURE_EXTRACTION, or None where peft was given none. `products` has the change
    of each adapted linear layer by the module's path in the transformers model, such as
    `distilbert.transformer.layer.0.attention.q_lin`; a head has none. `saved` has float32 parameters that are stored
    whole, such as `classifier.weight`. `config` is the config.json of the folder, with the labels, or {}. `settings`
    are the fields of adapter_config.json, and None for a head.
    """

    name: str
    folder: Path
    task_type: str | None
    products: dict[str, LowRank]
    saved: dict[str, FloatArray]
    config: dict[str, Any]
    settings: AdapterConfig | None

    @property
    def weights(self) -> Path:
        """The file of the tensors of a LoRA adapter, or the folder of a head."""
        return self.folder / WEIGHTS if self.settings else self.folder


def find_adapters(folder: Path) -> dict[str, Path]:
    """Return the subfolders of `folder` that hold an adapter or a checkpoint, by model name, in the order of names.

    A subfolder's name is the model's name. Files and hidden folders are ignored. Raises UsageError if a name can't be a
    model's name, or if there is no such subfolder.
    """
    try:
        entries = sorted(folder.iterdir())
        holders = [path for path in entries if not path.name.startswith(".") and _holds_model(path)]
    except OSError as error:
        raise UsageError(
            f"{folder} can't be read: {error.strerror}.", "Pass a folder with a folder for each adapter."
        ) from error
    if not holders:
        single = f"{folder} itself holds a model. Pass its parent folder. " if _holds_model(folder) else ""
        raise UsageError(
            f"{folder} has no subfolder with an adapter ({ADAPTER_CONFIG}) or a checkpoint ({CONFIG}).",
            f"{single}Put each adapter into a subfolder with the name that its model shall have.",
        )
    return {_model_name(path): path for path in holders}


def is_adapter(folder: Path) -> bool:
    """Return whether `folder` holds an adapter of peft (read_adapter), and not a whole checkpoint (read_head)."""
    return (folder / ADAPTER_CONFIG).is_file()


def _holds_model(folder: Path) -> bool:
    return is_adapter(folder) or (folder / CONFIG).is_file()


def _model_name(folder: Path) -> str:
    try:
        return check_name(folder.name)
    except UsageError as error:
        raise UsageError(
            f"{folder}: a subfolder's name is the model's name. {error.message}", f"Rename the folder. {error.fix}"
        ) from error


def read_adapter(name: str, folder: Path) -> Adapter:
    """Read the LoRA adapter in `folder`, which peft's save_pretrained wrote, for the model `name`.

    float16 and bfloat16 tensors are converted to float32. Raises CheckpointUnsupported if the adapter isn't plain LoRA,
    CheckpointUnsafe for a pickle or a link out of the folder, and CheckpointCorrupt for a damaged file or tensors that
    don't fit the fields; messages name the file and the field or tensor.
    """
    folder = folder.resolve()
    settings = read_adapter_config(folder)
    refuse_special_files(folder, link_root(folder))
    config = read_config(folder) if (folder / CONFIG).is_file() else {}
    file = _weights_file(folder)
    tensors = CheckpointTensors(Checkpoint(str(folder), folder, None, {}, (file,)))
    shapes = stored_shapes((file,))
    factors, parameters = _sorted_names(file, shapes, settings)
    products = {
        module: _product(file, module, names, tensors, shapes, settings) for module, names in sorted(factors.items())
    }
    saved = {path: tensors.parameter(stored, *shapes[stored]).read() for path, stored in sorted(parameters.items())}
    if settings.stored_modules and not saved:
        raise CheckpointCorrupt(
            f"{file} has no parameter of {' or '.join(settings.stored_modules)}, which {settings.file.name} says are "
            "stored whole (modules_to_save, or task_type).",
            f"Save {WEIGHTS} and {ADAPTER_CONFIG} together again.",
        )
    return Adapter(name, folder, settings.task_type, products, saved, config, settings)


def _weights_file(folder: Path) -> Path:
    file = folder / WEIGHTS
    if not file.is_file():
        if (folder / PICKLE).is_file():
            raise CheckpointUnsafe(
                f"{folder / PICKLE} is a pickle, which could run code.",
                f"Save the adapter as {WEIGHTS} where you trust it: model.save_pretrained(FOLDER) of peft 0.7.",
            )
        raise CheckpointCorrupt(f"{folder} has no {WEIGHTS}.", "Save the adapter again: model.save_pretrained(FOLDER).")
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise CheckpointUnsupported(
            f"{file} has {size / 1e9:.1f} GB; an adapter may have {MAX_BYTES >> 30} GiB.",
            MERGE,
        )
    with file.open("rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    if header > MAX_HEADER_BYTES and header < size:
        raise CheckpointCorrupt(f"{file} has a header of {header >> 20} MB.", "It can't be the file of an adapter.")
    checked_weights(file)
    return file


def _sorted_names(
    file: Path, shapes: Mapping[str, Shape], settings: AdapterConfig
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the names of the factors (module -> "A" or "B" -> name) and of whole parameters (path -> name)."""
    if len(shapes) > MAX_TENSORS:
        raise CheckpointCorrupt(f"{file} has {len(shapes):,} tensors.", "It can't be the file of an adapter.")
    factors: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for stored, shape in shapes.items():
        path = stored.removeprefix(PREFIX)
        if path == stored or not NAME.fullmatch(path):
            raise CheckpointCorrupt(f"{file} has a tensor {stored[:100]!r}, a name that peft doesn't write.", AGAIN)
        if not shape or 0 in shape:
            raise CheckpointCorrupt(
                f"{stored} in {file} has the shape {list(shape)}, without values.",
                "Gather the shards (DeepSpeed ZeRO-3, FSDP) before save_pretrained.",
            )
        if factor := FACTOR.fullmatch(path):
            factors.setdefault(factor[1], {})[factor[2]] = stored
            continue
        _refuse_other(file, stored, settings)
        path = STORED_AS.sub("", path)
        if path in parameters:
            raise CheckpointCorrupt(f"{file} has {path} twice: {parameters[path]} and {stored}.", AGAIN)
        parameters[path] = stored
    if not factors and not parameters:
        raise CheckpointCorrupt(f"{file} holds no tensor.", AGAIN)
    _refuse_both(file, factors, parameters)
    return factors, parameters


def _refuse_other(file: Path, stored: str, settings: AdapterConfig) -> None:
    """Refuse a tensor that is no factor of a product, unless `modules_to_save` has peft store it."""
    path = STORED_AS.sub("", stored.removeprefix(PREFIX))
    for part, meaning in OTHER_TENSORS.items():
        if part in path:
            raise CheckpointUnsupported(f"{stored} in {file} {meaning}; hfx takes plain LoRA only.", MERGE)
    if not settings.stores(path):
        raise CheckpointUnsupported(
            f"{stored} in {file} belongs to no module of modules_to_save in {settings.file.name}; peft stores "
            "embeddings like this if the vocabulary was changed.",
            MERGE,
        )


def _refuse_both(file: Path, factors: Mapping[str, object], parameters: Mapping[str, str]) -> None:
    for path, stored in parameters.items():
        if path.rpartition(".")[0] in factors:
            raise CheckpointUnsupported(
                f"{file} has a LoRA product and {stored} for one module.",
                "Train it with the module either in target_modules or in modules_to_save.",
            )


def _product(
    file: Path,
    module: str,
    names: Mapping[str, str],
    tensors: CheckpointTensors,
    shapes: Mapping[str, Shape],
    settings: AdapterConfig,
) -> LowRank:
    """Return the product of `module`, whose factors have these `names`, after checks of their shapes."""
    for other, present in (("A", "B"), ("B", "A")):
        if other not in names:
            raise CheckpointCorrupt(f"{file} has {names[present]} without the lora_{other} of {module}.", AGAIN)
    shape_a, shape_b, rank = shapes[names["A"]], shapes[names["B"]], settings.rank_of(module)
    if len(shape_a) != 2 or len(shape_b) != 2:
        raise CheckpointUnsupported(
            f"{names['A']} in {file} has the shape {list(shape_a)}, and lora_B {list(shape_b)}: {module} is no linear "
            "layer.",
            MERGE,
        )
    if shape_a[0] != shape_b[1]:
        _refuse_rank(file, module, f"lora_A {list(shape_a)} and lora_B {list(shape_b)} can't be multiplied")
    if shape_a[0] != rank:
        _refuse_rank(file, module, f"the rank is {shape_a[0]}, but {rank} in {settings.file.name}")
    a = tensors.parameter(names["A"], *shape_a).read()
    with np.errstate(over="ignore"):
        b = tensors.parameter(names["B"], *shape_b).read() * np.float32(settings.scale_of(module))
    if not np.isfinite(b).all():
        raise CheckpointCorrupt(f"{names['B']} in {file}, times the scale, is not finite.", AGAIN)
    return LowRank(a, b)


def _refuse_rank(file: Path, module: str, reason: str) -> NoReturn:
    raise CheckpointCorrupt(f"{file}: {reason} ({module}).", f"Save {WEIGHTS} and {ADAPTER_CONFIG} together again.")
