"""Check that an adapter fits its backbone, by names, shapes and config.json, before a model with values is built."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, SourceError
from hfx.exporter.adapters.adapter_config import ALONE, FEATURE_EXTRACTION, MERGE, SEQ_CLS, TOKEN_CLS
from hfx.exporter.adapters.folder import CONFIG, Adapter
from hfx.exporter.checkpoint_files import stored_shapes
from hfx.exporter.load import IGNORED_TENSORS, first_lines
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import Checkpoint

AUTO_CLASSES = {
    SEQ_CLS: "AutoModelForSequenceClassification",
    TOKEN_CLS: "AutoModelForTokenClassification",
    FEATURE_EXTRACTION: "AutoModel",
}
NAMES_SHOWN = 6
OTHER_BACKBONE = "Pass the backbone that the adapter was trained on."
# Fields of config.json that change no answer, and those that each adapter has for itself (labels, problem_type). All
# others must be equal.
HARMLESS = re.compile(
    "architectures|dtype|torch_dtype|transformers_version|_name_or_path|problem_type|finetuning_task|num_labels|"
    "id2label|label2id|tie_word_embeddings|use_cache|initializer_.*|.*dropout.*|.*_pdrop|layerdrop|sparse_pred.*|"
    "output_attentions|output_hidden_states|return_dict|chunk_size_feed_forward|gradient_checkpointing|"
    "deterministic_flash_attn|_attn_implementation.*"
)
LEGACY = re.compile(r"\.(gamma|beta)$")  # names of TensorFlow's checkpoints
CURRENT = {"gamma": ".weight", "beta": ".bias"}


@dataclass(frozen=True)
class TaskModel:
    """The model of transformers for a `task` on a backbone, without values.

    `config` is the backbone's, `shapes` has the parameters, and `linears` the paths of linear layers. The first
    dimension of the parameters `labelled` is the number of labels. `lacking` are the parameters of the head that are
    not in the backbone's files.
    """

    task: str
    config: Any
    shapes: Mapping[str, tuple[int, ...]]
    linears: frozenset[str]
    labelled: frozenset[str]
    lacking: frozenset[str]


@contextmanager
def transformers_errors(backbone: Checkpoint, subject: str) -> Iterator[None]:
    """Turn any error of transformers and peft in a block into CheckpointCorrupt, whose message says `subject`."""
    try:
        with quiet_libraries():
            yield
    except SourceError:
        raise
    except Exception as error:  # an unforeseen config or file may fail anywhere in transformers and peft
        raise CheckpointCorrupt(f"{subject}: {backbone.in_folder(first_lines(error))}", OTHER_BACKBONE) from error


def read_settings(checkpoint: Checkpoint) -> Any:
    """Return the config as transformers reads it, with all defaults."""
    from transformers import AutoConfig

    with quiet_libraries():
        return AutoConfig.from_pretrained(checkpoint.home.view, local_files_only=True, trust_remote_code=False)


def task_model(backbone: Checkpoint, task: str) -> TaskModel:
    """Return the model for `task` on `backbone`. Raises CheckpointCorrupt if transformers has none."""
    import torch

    with transformers_errors(backbone, f"{backbone.folder} is no backbone for {task}"):
        config = read_settings(backbone)
        model, other = (_without_values(config, task, labels) for labels in (2, 3))
        stored = {current(name) for name in stored_shapes(backbone.weights)}
    shapes, others = _shapes(model), _shapes(other)
    prefix, lacking = f"{model.base_model_prefix}.", frozenset[str]()
    if task != FEATURE_EXTRACTION:
        head = {name for name in shapes if not name.startswith(prefix) or IGNORED_TENSORS.search(name)}
        lacking = frozenset(name for name in head if not {name, name.removeprefix(prefix)} & stored)
    linears = frozenset(path for path, module in model.named_modules() if isinstance(module, torch.nn.Linear))
    labelled = frozenset(name for name, shape in shapes.items() if shape != others[name])
    return TaskModel(task, config, shapes, linears, labelled, lacking)


def _without_values(config: Any, task: str, labels: int) -> Any:
    """Return the model for `task` with so many `labels`."""
    import torch
    import transformers

    changed = copy.deepcopy(config)
    changed.id2label = {index: str(index) for index in range(labels)}
    with torch.device("meta"):
        return getattr(transformers, AUTO_CLASSES[task]).from_config(changed, trust_remote_code=False)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def check_fit(adapter: Adapter, model: TaskModel) -> None:
    """Refuse an adapter or a head that is not one of `model`.

    Raises CheckpointCorrupt for a product or parameter without a place or of another shape, and for another number of
    labels than the head has; CheckpointUnsupported if a part of the head is missing or no linear layer, and for a
    config.json with other settings than the backbone's.
    """
    products = {f"{path}.weight": (len(pair.b), pair.a.shape[1]) for path, pair in adapter.products.items()}
    for name, shape in (products | {name: values.shape for name, values in adapter.saved.items()}).items():
        if name not in model.shapes:
            _refuse_misfit(adapter, f"changes {name}, which the backbone doesn't have")
        expected, first = model.shapes[name], 1 if name in model.labelled else 0
        if shape[first:] != expected[first:]:
            _refuse_misfit(adapter, f"has {list(shape)} for {name}, which is {list(expected)} in the backbone")
    for path in adapter.products:
        if path not in model.linears:
            _refuse_misfit(adapter, f"adapts {path}, which is no linear layer")
    if model.task != FEATURE_EXTRACTION:
        _check_head(adapter, model)
        labels(adapter, model)
    if adapter.settings and adapter.config:
        refuse_other_settings(adapter.folder / CONFIG, adapter.config, model.config, MERGE)


def _refuse_misfit(adapter: Adapter, reason: str) -> NoReturn:
    raise CheckpointCorrupt(f"{adapter.weights} {reason}.", OTHER_BACKBONE if adapter.settings else ALONE)


def _check_head(adapter: Adapter, model: TaskModel) -> None:
    """Refuse a head with parts that are in no file, whose values are lost, or that have no operator for adapters."""
    lost = (model.lacking | model.labelled) - adapter.saved.keys()
    modules = {name.rpartition(".")[0] for name in lost}
    if lost:
        more = f" and {len(lost) - NAMES_SHOWN} more" if len(lost) > NAMES_SHOWN else ""
        advice = f"Train the adapter with modules_to_save={sorted(modules)}."
        if not modules <= model.linears:
            advice = (
                f"Give the backbone a head: {AUTO_CLASSES[model.task]}.from_pretrained(BACKBONE).save_pretrained("
                "FOLDER). Train the adapter on FOLDER, and export it with FOLDER."
            )
        raise CheckpointUnsupported(
            f"Neither {adapter.weights} nor the backbone has {', '.join(sorted(lost)[:NAMES_SHOWN])}{more}: the values "
            "of the training are lost.",
            advice,
        )
    for name, values in adapter.saved.items():
        path = name.rpartition(".")[0]
        if path not in model.linears or f"{path}.weight" not in adapter.saved:
            raise CheckpointUnsupported(
                f"{adapter.folder} brings {name} {list(values.shape)}, which is no linear layer of a head.",
                MERGE if adapter.settings else ALONE,
            )


def labels(adapter: Adapter, model: TaskModel) -> dict[int, str]:
    """Return the names of the labels by index: those in the adapter's config.json, or LABEL_0 and so on.

    Raises CheckpointCorrupt if the head has another number of labels.
    """
    counts = {len(adapter.saved[name]) for name in model.labelled}
    if len(counts) != 1:
        _refuse_misfit(adapter, f"has different numbers of rows for {' and '.join(sorted(model.labelled))}")
    [rows], stated = counts, adapter.config.get("id2label")
    usual = rows if adapter.settings else 2  # a whole checkpoint has two labels unless its config.json says otherwise
    named = adapter.config.get("num_labels", usual) if stated is None else len(stated)
    if named != rows:
        raise CheckpointCorrupt(
            f"{adapter.folder / CONFIG} names {named} labels, and the head in {adapter.weights.name} has {rows}.",
            "Put the config.json of the model that was trained beside the adapter.",
        )
    return {index: f"LABEL_{index}" if stated is None else str(stated[str(index)]) for index in range(rows)}


def refuse_other_settings(file: Path, fields: Mapping[str, Any], backbone: Any, fix: str) -> None:
    """Refuse the config.json `file` with `fields` by which equal weights would compute something else.

    `backbone` is the config of transformers to compare with. Raises CheckpointUnsupported with the name of a field and
    both values.
    """
    stated = {name: copy.deepcopy(value) for name, value in fields.items() if not HARMLESS.fullmatch(name)}
    try:
        with quiet_libraries():
            own = {**type(backbone).from_dict(stated).to_dict(), "model_type": fields["model_type"]}
    except Exception as error:  # the classes check types and values, each in its own way
        raise CheckpointCorrupt(f"{file} can't be read: {first_lines(error)}", fix) from error
    theirs = backbone.to_dict()
    for name in ("model_type", *sorted(own.keys() | theirs.keys())):
        if own.get(name) != theirs.get(name) and not HARMLESS.fullmatch(name):
            raise CheckpointUnsupported(
                f"{file}: {name} is {str(own.get(name))[:60]}, and {str(theirs.get(name))[:60]} in the backbone's.", fix
            )


def current(name: str) -> str:
    """Return the present name of a stored tensor."""
    return LEGACY.sub(lambda found: CURRENT[found[1]], name)
