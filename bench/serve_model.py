"""The published model that is served and opened in process: exported once by hfx's own steps, kept in the cache.

Owns the cache's key and what of an export is left out. It must not know how the model is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.generation_cases import open_model
from bench.peers.resident import apart
from hfx.perf.cache import made

NAME = "gpt2"
CHECKPOINT = "distilgpt2"
TOKENIZER, SLOW_TOKENIZER = "tokenizer.json", ("vocab.json", "merges.txt")
SLOTS = 128  # the most callers that are measured at the same time: each has a row at once


def repository(tiny: bool) -> Path:
    """A model repository with NAME, int8 for CPU. Made again when the checkpoint or a source of hfx changes."""
    checkpoint = open_model(CHECKPOINT, tiny).checkpoint
    stem = f"models/served-int8-{'tiny-' * tiny}{CHECKPOINT}-"

    def build(staging: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="hfx-bench-") as worded:
            copy = Path(worded) / CHECKPOINT
            with_words(Path(checkpoint), copy)
            apart(export, checkpoint=str(copy), folder=str(staging))

    folder = made(stem + _key(checkpoint), build)
    for other in folder.parent.glob(f"{Path(stem).name}*"):  # of other sources: nobody comes back to them
        if not other.name.startswith(folder.name):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def with_words(checkpoint: Path, target: Path) -> None:
    """A copy in which every id has a text, by words that no text is cut into.

    The zoo's tokenizer knows a few thousand of the ids that random weights write, and no text is no message.
    """
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns(*SLOW_TOKENIZER))
    tokenizer = json.loads((target / TOKENIZER).read_text(encoding="utf-8"))
    known = tokenizer["model"]["vocab"]
    size = json.loads((target / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    known.update({f"\u0120x{number}": number for number in range(len(known), size)})  # the first letter is a blank
    (target / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def export(checkpoint: str, folder: str) -> None:
    """`hfx export` without the gate: random weights answer with near ties, so there is nothing to compare."""
    from hfx.exporter import pipeline
    from hfx.exporter.options import ExportOptions
    from hfx.exporter.plan import make_plan
    from hfx.exporter.source import open_checkpoint

    options = ExportOptions(
        name=NAME,
        precision="int8",
        device="cpu",
        repository=Path(folder),
        slots=SLOTS,
        max_drop=1.0,
        force=True,
        command="python -m bench.serve",
    )
    plan = make_plan(open_checkpoint(checkpoint), options)
    pipeline.export(plan, contextlib.nullcontext, pipeline.without_gate(plan))


def parameters(folder: Path) -> Mapping[str, int]:
    """How the published engine is opened: slots, max_queue and threads of its configuration."""
    from hfx.local import read_config

    config = read_config(folder / f"{NAME}_stream" / "configs" / "cpu.pbtxt")
    texts = {key: entry["string_value"] for key, entry in config["parameters"].items()}
    names = {"slots": "slots", "max_queue": "max_queue_size", "threads": "intra_op_thread_count"}
    return {option: int(texts[key]) for option, key in names.items()}


def _key(checkpoint: str) -> str:
    """Changes with the checkpoint and with every file of hfx that decides what is published."""
    import hfx

    root = Path(hfx.__file__).parent
    folders = [(root / name).resolve() for name in ("exporter", "python_backends", "repository")]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    digest = hashlib.sha256(f"{checkpoint} {SLOTS} {Path(__file__).read_text()}".encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
