"""Adapters with random weights on a backbone, as peft saves them, and heads on the same backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hfx.exporter.quiet import quiet_libraries


def write_adapter(
    folder: Path,
    backbone: Path,
    seed: int,
    labels: int = 2,
    size: float = 0.1,
    names: list[str] | None = None,
    **lora: Any,
) -> Path:
    """Write a LoRA adapter for sequence classification, whose products and head differ with `seed`.

    The values of its second matrices have the standard deviation `size`. With `names`, its labels have these names.
    """
    import peft
    import torch
    from transformers import AutoModelForSequenceClassification

    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_lin", "v_lin"], "modules_to_save": HEAD} | lora
    with quiet_libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            backbone, num_labels=labels, ignore_mismatched_sizes=True
        )
        model.classifier.reset_parameters()
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **chosen))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=size)
            elif "classifier.modules_to_save" in name and name.endswith("weight"):
                torch.nn.init.normal_(parameter, std=1.0)
        adapted.save_pretrained(folder)
    if names:
        described = {"num_labels": len(names), "id2label": dict(enumerate(names))}
        described |= {"label2id": {label: index for index, label in enumerate(names)}}
        (folder / "config.json").write_text(json.dumps(json.loads((backbone / "config.json").read_text()) | described))
    return folder


def write_head(folder: Path, backbone: Path, seed: int, labels: int = 2) -> Path:
    """Write a checkpoint that differs from the backbone only in its last layer."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with quiet_libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            backbone, num_labels=labels, ignore_mismatched_sizes=True
        )
        torch.nn.init.normal_(model.classifier.weight, std=1.0)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(backbone).save_pretrained(folder)
    return folder


HEAD = ["pre_classifier", "classifier"]  # of DistilBERT
