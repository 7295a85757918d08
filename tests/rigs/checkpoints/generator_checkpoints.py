"""Complete checkpoints of tiny_generators.py: weights, a tokenizer of letters, and generation settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.generation.folders import write_text_files
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine.generation_models import END, letters

FAMILIES = ("gpt2", "llama", "bart", "t5")
LONGEST = 60


def tokenizer() -> Any:
    """Return a tokenizer of one token a letter; id 0 is the end."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=letters(),
        eos_token=END,
        pad_token=END,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )


def save(folder: Path, name: str, generation: dict[str, Any] | None = None, **config: Any) -> Path:
    """Save the checkpoint `name` of tiny_generators; `generation` are fields of generation_config.json."""
    ends = {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": None}
    return save_whole(folder, tiny_generators.build(name, **ends, **config), tokenizer(), generation or {})


def save_whole(folder: Path, model: Any, tokenizer: Any, generation: dict[str, Any]) -> Path:
    """Save a model and its tokenizer in `folder`; `generation` are further fields of generation_config.json."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | generation))
    return folder


def write_version(checkpoint: Path, folder: Path) -> Path:
    """Write an fp32 engine for CPUs and the text files of the checkpoint, without the gate; return `folder`."""
    source = open_checkpoint(str(checkpoint))
    plan = make_plan(source, ExportOptions(precision="fp32", device="cpu"))
    assert isinstance(plan, GeneratorPlan)
    spec = write_engine_folder(source, folder / "cpu", FORMATS["fp32"], 127)
    write_text_files(plan, folder, load_tokenizer(source), spec)
    return folder
