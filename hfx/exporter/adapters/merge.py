"""Merge a LoRA adapter into its backbone with transformers and peft: an ordinary checkpoint, to compare with.

Nothing here uses the products that read_adapter computed, so that an error of theirs shows in the comparison.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, SourceError
from hfx.exporter.adapters.adapter_config import (
    ADAPTER_CONFIG,
    FEATURE_EXTRACTION,
    SEQ_CLS,
    TOKEN_CLS,
    AdapterConfig,
)
from hfx.exporter.adapters.folder import STORED_AS, WEIGHTS, Adapter
from hfx.exporter.checkpoint_files import CONFIGS, TOKENIZERS, stored_shapes
from hfx.exporter.load import IGNORED_TENSORS, first_lines
from hfx.exporter.model_files import write_json
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import Checkpoint

AUTO_CLASSES = {
    SEQ_CLS: "AutoModelForSequenceClassification",
    TOKEN_CLS: "AutoModelForTokenClassification",
    FEATURE_EXTRACTION: "AutoModel",
}
CONFIG = "config.json"
NAMES_SHOWN = 6
TOKENIZER_CONFIGS = [name for name in CONFIGS if "token" in name]
OTHER_BACKBONE = "Pass the backbone that the adapter was trained on."


def merged_checkpoint(backbone: Checkpoint, adapter: Adapter, target: Path) -> None:
    """Write the checkpoint of `adapter` (of read_adapter) merged into `backbone` into the new folder `target`.

    It has config.json, a float32 model.safetensors, and the files of the backbone's tokenizer; for an embedding model
    also the modules of sentence-transformers. Raises CheckpointUnsupported if neither the backbone nor the adapter has
    a parameter of the head, and CheckpointCorrupt if the adapter doesn't fit the backbone.
    """
    if adapter.settings is None:
        raise ValueError(f"{adapter.name} is a head: its folder is the merged checkpoint.")
    task = task_of(adapter)
    try:
        with quiet_libraries():
            config = _config(backbone, adapter, task)
            model, missing = _load(backbone, adapter, config, task)
            merged = _merge(model, adapter, adapter.settings)
            target.mkdir(parents=True)
            home = target / backbone.home.folder.relative_to(backbone.folder)
            tensors = {name: tensor for name, tensor in merged.state_dict().items() if name not in missing}
            merged.save_pretrained(home, state_dict=tensors, max_shard_size="1TB")
    except SourceError:
        raise
    except Exception as error:  # an unforeseen config or file may fail anywhere in transformers and peft
        raise CheckpointCorrupt(
            f"{adapter.weights} can't be merged into {backbone.folder}: {backbone.in_folder(first_lines(error))}",
            OTHER_BACKBONE,
        ) from error
    _write_config(backbone, config, type(merged).__name__, home / CONFIG)
    _copy_files(backbone, target, home, whole=task == FEATURE_EXTRACTION)


def task_of(adapter: Adapter) -> str:
    """Return the task type of `adapter`; without one, it classifies texts if it has a head, and else embeds them."""
    return adapter.task_type or (SEQ_CLS if adapter.saved else FEATURE_EXTRACTION)


def _config(backbone: Checkpoint, adapter: Adapter, task: str) -> Any:
    """Return the backbone's config as transformers reads it, with the labels of the adapter."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(backbone.home.view, local_files_only=True, trust_remote_code=False)
    if task != FEATURE_EXTRACTION:
        labels = _labels(adapter, _number_of_labels(config, adapter, task))
        config.id2label, config.label2id = labels, {label: index for index, label in labels.items()}
        config.problem_type = adapter.config.get("problem_type")
    return config


def _number_of_labels(config: Any, adapter: Adapter, task: str) -> int:
    """Return the rows of the saved parameters of the last layer: the only ones whose shape depends on the labels.

    Raises CheckpointUnsupported without such parameters, and CheckpointCorrupt if they have different rows.
    """
    few, more = (_shapes(config, task, labels) for labels in (2, 3))
    for module in adapter.products:
        if f"{module}.weight" not in few:
            _refuse_misfit(adapter, f"changes {module}, which the backbone doesn't have")
    last = [name for name, shape in few.items() if shape != more[name]]
    lacking = [name for name in last if name not in adapter.saved]
    if lacking or not last:
        raise _no_head(adapter, lacking)
    rows = {len(adapter.saved[name]) for name in last}
    if len(rows) != 1:
        raise CheckpointCorrupt(
            f"{adapter.weights}: {' and '.join(last)} have different numbers of rows.", "Save the adapter again."
        )
    return rows.pop()


def _shapes(config: Any, task: str, labels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters of the model for `task` with so many `labels`."""
    import copy

    import torch
    import transformers

    changed = copy.deepcopy(config)
    changed.id2label = {index: str(index) for index in range(labels)}
    with torch.device("meta"):
        model = getattr(transformers, AUTO_CLASSES[task]).from_config(changed, trust_remote_code=False)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _labels(adapter: Adapter, rows: int) -> dict[int, str]:
    """Return the names of the labels by index: those in the adapter's config.json, or LABEL_0 and so on."""
    stated = adapter.config.get("id2label")
    if stated is None:
        return {index: f"LABEL_{index}" for index in range(rows)}
    if len(stated) != rows:
        raise CheckpointCorrupt(
            f"{adapter.folder / CONFIG} names {len(stated)} labels, and the head in {adapter.weights.name} has {rows}.",
            "Put the config.json of the model that was trained beside the adapter.",
        )
    return {index: str(stated[str(index)]) for index in range(rows)}


def _load(backbone: Checkpoint, adapter: Adapter, config: Any, task: str) -> tuple[Any, set[str]]:
    """Return the model for `task` with the backbone's weights, and the names of parameters that only a pooler has.

    Raises CheckpointUnsupported if parameters are in neither file: transformers would draw them at random.
    """
    import torch
    import transformers

    model, report = getattr(transformers, AUTO_CLASSES[task]).from_pretrained(
        backbone.home.view,
        config=config,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=not backbone.pickled,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # the head of the backbone may have other labels
        output_loading_info=True,
        weights_only=True,
    )
    _require_fit(model, adapter)
    mismatched = {name if isinstance(name, str) else name[0] for name in report["mismatched_keys"]}
    missing = (set(report["missing_keys"]) | mismatched) - adapter.saved.keys()
    unused = {name for name in missing if task == FEATURE_EXTRACTION and IGNORED_TENSORS.search(name)}
    if missing - unused:
        raise _no_head(adapter, missing - unused)
    return model, unused


def _no_head(adapter: Adapter, names: Iterable[str]) -> CheckpointUnsupported:
    lacking = sorted(names)
    modules = sorted({name.rpartition(".")[0] for name in lacking}) or ["classifier"]
    more = f" and {len(lacking) - NAMES_SHOWN} more" if len(lacking) > NAMES_SHOWN else ""
    return CheckpointUnsupported(
        f"Neither {adapter.weights} nor the backbone has {', '.join(lacking[:NAMES_SHOWN]) or 'a head'}{more}: the "
        "values of the training are lost.",
        f"Train the adapter with modules_to_save={modules}.",
    )


def _require_fit(model: Any, adapter: Adapter) -> None:
    """Raise CheckpointCorrupt for a product or parameter without a place in `model`, and for one of another shape."""
    import torch

    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    ours: dict[str, tuple[int, ...]] = {
        f"{module}.weight": (len(low.b), low.a.shape[1]) for module, low in adapter.products.items()
    }
    ours |= {name: parameter.shape for name, parameter in adapter.saved.items()}
    for name, shape in ours.items():
        if name not in shapes:
            _refuse_misfit(adapter, f"changes {name}, which the backbone doesn't have")
        if shape != shapes[name]:
            _refuse_misfit(adapter, f"has {list(shape)} for {name}, which is {list(shapes[name])} in the backbone")
    for module in adapter.products:
        if module not in linears:
            _refuse_misfit(adapter, f"adapts {module}, which is no linear layer")


def _refuse_misfit(adapter: Adapter, reason: str) -> NoReturn:
    raise CheckpointCorrupt(f"{adapter.weights} {reason}.", OTHER_BACKBONE)


def _merge(model: Any, adapter: Adapter, settings: AdapterConfig) -> Any:
    """Return `model` with the adapter merged in by peft, which gets the checked fields and the tensors only."""
    from peft import PeftModel, get_peft_model_state_dict

    with tempfile.TemporaryDirectory() as folder:
        content = json.dumps(settings.for_peft(adapter.products))
        (Path(folder) / ADAPTER_CONFIG).write_text(content, encoding="utf-8")
        (Path(folder) / WEIGHTS).symlink_to(adapter.weights)
        adapted = PeftModel.from_pretrained(model, folder, torch_device="cpu")
    loaded = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    stored = {STORED_AS.sub("", name) for name in stored_shapes([adapter.weights])}
    unread = sorted(stored - {STORED_AS.sub("", name) for name in loaded})
    if unread:
        raise CheckpointCorrupt(f"peft doesn't read {unread[0]} in {adapter.weights}.", OTHER_BACKBONE)
    return adapted.merge_and_unload().eval()


def _write_config(backbone: Checkpoint, config: Any, architecture: str, file: Path) -> None:
    """Write the backbone's config.json with the labels and class of the merged model.

    It still names the version of transformers that wrote the backbone, by which its tokenizer is read.
    """
    kept = {name: value for name, value in backbone.config.items() if name not in ("torch_dtype", "num_labels")}
    fields: dict[str, Any] = {"architectures": [architecture], "dtype": "float32"}
    if architecture.endswith("Classification"):
        labels = {str(index): label for index, label in config.id2label.items()}
        fields |= {"id2label": labels, "label2id": config.label2id, "problem_type": config.problem_type}
    write_json(file, kept | fields)


def _copy_files(backbone: Checkpoint, target: Path, home: Path, whole: bool) -> None:
    """Copy the tokenizer's files from the backbone's view, and the `whole` rest for an embedding model."""
    if whole:
        weights = {file.relative_to(backbone.folder) for file in backbone.weights}
        for file in sorted(backbone.view.rglob("*")):
            path = file.relative_to(backbone.view)
            if file.is_file() and path not in weights and not (target / path).exists():
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target / path)
    for name in (*TOKENIZERS, *TOKENIZER_CONFIGS):
        if (backbone.home.view / name).is_file():
            shutil.copyfile(backbone.home.view / name, home / name)
