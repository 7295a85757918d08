"""Merge a LoRA adapter into its backbone with transformers and peft: an ordinary checkpoint, to compare with.

Nothing here uses the products that read_adapter computed, so that an error of theirs shows in the comparison.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt
from hfx.exporter.adapters.adapter_config import ADAPTER_CONFIG, FEATURE_EXTRACTION, SEQ_CLS, AdapterConfig
from hfx.exporter.adapters.fit import (
    AUTO_CLASSES,
    OTHER_BACKBONE,
    TaskModel,
    check_fit,
    labels,
    task_model,
    transformers_errors,
)
from hfx.exporter.adapters.folder import CONFIG, STORED_AS, WEIGHTS, Adapter
from hfx.exporter.checkpoint_files import CONFIGS, TOKENIZERS, stored_shapes
from hfx.exporter.load import IGNORED_TENSORS
from hfx.exporter.model_files import write_json
from hfx.exporter.source import Checkpoint

TOKENIZER_CONFIGS = [name for name in CONFIGS if "token" in name]


def merged_checkpoint(backbone: Checkpoint, adapter: Adapter, target: Path) -> None:
    """Write the checkpoint of `adapter` (of read_adapter) merged into `backbone` into the new folder `target`.

    It has config.json, a float32 model.safetensors, and the files of the backbone's tokenizer; for an embedding model
    also the modules of sentence-transformers. Raises what check_fit raises, and CheckpointCorrupt if transformers or
    peft can't read a file.
    """
    if adapter.settings is None:
        raise ValueError(f"{adapter.name} is a head: its folder is the merged checkpoint.")
    fitting = task_model(backbone, task_of(adapter))
    check_fit(adapter, fitting)
    config, task = _config(adapter, fitting), fitting.task
    with transformers_errors(backbone, f"{adapter.weights} can't be merged into {backbone.folder}"):
        model, missing = _load(backbone, adapter, config, task)
        merged = _merge(model, adapter, adapter.settings)
        target.mkdir(parents=True)
        home = target / backbone.home.folder.relative_to(backbone.folder)
        tensors = {name: tensor for name, tensor in merged.state_dict().items() if name not in missing}
        merged.save_pretrained(home, state_dict=tensors, max_shard_size="1TB")
    _write_config(backbone, adapter, config, type(merged).__name__, home / CONFIG)
    _copy_files(backbone, target, home, whole=task == FEATURE_EXTRACTION)


def task_of(adapter: Adapter) -> str:
    """Return the task type of `adapter`; without one, it classifies texts if it has a head, and else embeds them."""
    return adapter.task_type or (SEQ_CLS if adapter.saved else FEATURE_EXTRACTION)


def _config(adapter: Adapter, model: TaskModel) -> Any:
    """Return the backbone's config as transformers reads it, with the labels of the adapter."""
    config = copy.deepcopy(model.config)
    if model.task != FEATURE_EXTRACTION:
        config.id2label = labels(adapter, model)
        config.label2id = {label: index for index, label in config.id2label.items()}
        config.problem_type = adapter.config.get("problem_type")
    return config


def _load(backbone: Checkpoint, adapter: Adapter, config: Any, task: str) -> tuple[Any, set[str]]:
    """Return the model for `task` with the backbone's weights, and the names of parameters that only a pooler has.

    Raises CheckpointCorrupt if parameters are in neither file: transformers would draw them at random.
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
    mismatched = {name if isinstance(name, str) else name[0] for name in report["mismatched_keys"]}
    missing = (set(report["missing_keys"]) | mismatched) - adapter.saved.keys()
    unused = {name for name in missing if task == FEATURE_EXTRACTION and IGNORED_TENSORS.search(name)}
    if lost := sorted(missing - unused):
        raise CheckpointCorrupt(f"{backbone.folder} lacks {len(lost)} parameters (first: {lost[0]}).", OTHER_BACKBONE)
    return model, unused


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


def _write_config(backbone: Checkpoint, adapter: Adapter, config: Any, architecture: str, file: Path) -> None:
    """Write the adapter's own config.json, or else the backbone's, with the labels and class of the merged model.

    It still names the version of transformers that wrote the backbone, by which its tokenizer is read.
    """
    stated = adapter.config or backbone.config
    kept = {name: value for name, value in stated.items() if name not in ("torch_dtype", "num_labels")}
    fields: dict[str, Any] = {"architectures": [architecture], "dtype": "float32"}
    if writer := backbone.config.get("transformers_version"):
        fields["transformers_version"] = writer
    if architecture.endswith("Classification"):
        named = {str(index): label for index, label in config.id2label.items()}
        fields |= {"id2label": named, "label2id": config.label2id, "problem_type": config.problem_type}
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
