"""`python -m bench.adapters`: many LoRA classifiers on one backbone, beside as many whole models, and beside peft.

Requests name the models in turn, so that a batch mixes them. Memory is that of all of a server's processes (PSS).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench import vocabulary
from bench.cases import Served
from bench.child import Child, Run
from bench.client import TIMEOUT, Record, drive, summary
from bench.command import Settings, Work, run
from bench.exports import NAME, sources
from bench.figures import Figures, Goal, add_measured, noted, say
from bench.packages import converted
from hfx.manifest import hash_folder, read_manifest, write_manifest
from hfx.names import MANIFEST_FILE
from hfx.perf.load import Closed
from hfx.repository import models
from hfx.triton import EmbeddedServer

BACKBONE = Served("distilbert-base")
ADAPTERS, WHOLE, ONE, PEFT = "adapters", "whole int8 models", "one int8 model", "peft in torch"
COUNTS = (1, 10, 50, 200)
MOST_WHOLE, MOST_PEFT = 50, 50  # more would take too much memory
RANK, LABELS = 8, 4
ATTENTION = ("attention.q_lin", "attention.v_lin")
EVERY = (*ATTENTION, "attention.k_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2")
WORDS = (8, 16, 24, 40, 64)  # of the texts, in turn
CALLERS = {1: 40, 32: 600}  # callers: requests of a turn
COLUMNS = ("requests/s 32", "p50 ms 1", "p50 ms 32", "PSS MiB", "seconds to start")


def published(count: int, every: bool, quick: bool) -> Path:
    """A repository with `count` adapters of the backbone; with `every`, of all products of its layers."""
    checkpoint = BACKBONE.checkpoint(quick)
    return converted("adapters", [checkpoint / "config.json", *sources()], publish,
                     checkpoint=str(checkpoint), count=count, every=every)  # fmt: skip


def publish(folder: str, checkpoint: str, count: int, every: bool) -> None:
    """Write adapters with random weights, and export them without the gate."""
    from hfx.exporter.adapters.export import export_set, read_set
    from hfx.exporter.options import ExportOptions
    from hfx.exporter.source import open_checkpoint

    written = Path(folder) / "adapters"
    folders = {name: write_adapter(written / name, Path(checkpoint), seed, every) for seed, name in named(count)}
    options = ExportOptions(precision="int8", repository=Path(folder) / "models", command="python -m bench.adapters")
    chosen = read_set(open_checkpoint(checkpoint), folders, options)
    for _, outcome in export_set(chosen, lambda title: nullcontext(), gate=False):
        if isinstance(outcome, Exception):
            raise outcome


def named(count: int) -> list[tuple[int, str]]:
    """Number and name of each adapter."""
    return [(number, f"team-{number}") for number in range(count)]


def write_adapter(folder: Path, checkpoint: Path, seed: int, every: bool) -> Path:
    """Write the folder of an adapter as peft does: low-rank pairs of rank RANK, and a head with LABELS labels."""
    import numpy as np
    from safetensors.numpy import save_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    width, inner, draw = config["dim"], config["hidden_dim"], np.random.default_rng(seed).standard_normal
    sizes = {"ffn.lin1": (width, inner), "ffn.lin2": (inner, width)}
    modules = EVERY if every else ATTENTION
    tensors = {"classifier.weight": draw((LABELS, width)), "classifier.bias": draw(LABELS)}
    # peft takes "classifier" for the end of a name, and so saves both layers of DistilBERT's head.
    tensors |= {"pre_classifier.weight": draw((width, width)) / width**0.5, "pre_classifier.bias": draw(width)}
    for layer, module in itertools.product(range(config["n_layers"]), modules):
        inputs, outputs = sizes.get(module, (width, width))
        path = f"distilbert.transformer.layer.{layer}.{module}"
        tensors[f"{path}.lora_A.weight"] = draw((RANK, inputs)) / inputs**0.5
        tensors[f"{path}.lora_B.weight"] = 0.1 * draw((outputs, RANK))
    folder.mkdir(parents=True)
    floats = {f"base_model.model.{name}": values.astype(np.float32) for name, values in tensors.items()}
    save_file(floats, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "task_type": "SEQ_CLS", "r": RANK, "lora_alpha": RANK, "bias": "none",
        "target_modules": [module.rpartition(".")[2] for module in modules], "modules_to_save": ["classifier"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def copies(count: int, quick: bool) -> Path:
    """A repository with the backbone in int8 as `count` models, each with files of its own."""
    one = BACKBONE.repository("int8", quick)
    files = [BACKBONE.checkpoint(quick) / "config.json", *sources()]
    return converted("whole", files, copy, source=str(one), count=count)


def copy(folder: str, source: str, count: int) -> None:
    """Copy the model NAME under other names."""
    root = Path(folder) / "models"
    before = read_manifest(Path(source) / NAME / MANIFEST_FILE)
    for _, name in named(count):
        folders = {member: name + member.removeprefix(NAME) for member in before.folders}
        for member, target in folders.items():
            shutil.copytree(Path(source) / member, root / target)
            for config in (root / target).rglob("*.pbtxt"):
                config.write_text(_renamed(config.read_text(encoding="utf-8"), name), encoding="utf-8")
        files = {path: entry for each in folders.values() for path, entry in hash_folder(root / each, root).items()}
        manifest = replace(before, name=name, folders=tuple(folders.values()), files=files)
        write_manifest(manifest, root / name / MANIFEST_FILE)


def _renamed(text: str, name: str) -> str:
    for end in ("", "_tokenize", "_net", "_postprocess"):
        text = text.replace(f'"{NAME}{end}"', f'"{name}{end}"')
    return text


def texts() -> list[str]:
    """Texts of WORDS words in turn."""
    words = " ".join(vocabulary.corpus()).split()
    return [" ".join(words[97 * number :][: WORDS[number % len(WORDS)]]) for number in range(200)]


def open_posts(url: str, names: Sequence[str]) -> Callable[[tuple[int, int]], Run]:
    """In the client's process: `requests` to the models `names` in turn, by so many callers."""

    async def load(callers: int, requests: int) -> list[Record]:
        import httpx

        limits, sent = httpx.Limits(max_connections=None), texts()
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as client:

            async def send(number: int, record: Record) -> None:
                text, name = sent[number % len(sent)], names[number % len(names)]
                tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
                answer = await client.post(f"{url}/v2/models/{name}/infer", json={"inputs": [tensor]})
                answer.raise_for_status()
                record.messages.append(time.perf_counter())

            return await drive(send, Closed(callers), requests)

    return lambda case: lambda: asyncio.run(load(*case))


def open_peft(checkpoint: str, folders: str, names: Sequence[str]) -> Callable[[tuple[int, int]], Run]:
    """In a process of its own: one peft model with all adapters, which answers one text after the other."""
    import peft
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    base = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, num_labels=LABELS, ignore_mismatched_sizes=True
    )
    first, *others = names
    model = peft.PeftModel.from_pretrained(base, f"{folders}/{first}", adapter_name=first)
    for name in others:
        model.load_adapter(f"{folders}/{name}", adapter_name=name)
    model.eval()
    sent = texts()

    def answer(requests: int) -> list[Record]:
        records = []
        for number in range(requests):
            record = Record(time.perf_counter())
            model.set_adapter(names[number % len(names)])
            with torch.inference_mode():
                model(**tokenizer(sent[number % len(sent)], return_tensors="pt", truncation=True))
            record.messages.append(time.perf_counter())
            records.append(record)
        return records

    return lambda case: lambda: answer(case[1])


class Ways:
    """Servers of the same load, and peft. A context manager's content."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sizes = {1: 4, 32: 64} if settings.quick else CALLERS

    def served(self, repository: Path) -> dict[str, float | None]:
        """The figures of a server of all models in `repository`."""
        names = [entry.name for entry in models(repository) if entry.manifest]
        with ExitStack() as stack:
            began = time.perf_counter()
            server = stack.enter_context(EmbeddedServer(repository))
            started = time.perf_counter() - began
            client = stack.enter_context(Child(open_posts, url=server.http_url, names=names))
            for case in self.sizes.items():  # every model has answered before
                client.run((case[0], max(case[1], len(names))), warm=False)
            found = self._figures(client)
            root = psutil.Process(server.pid)
            pss = sum(each.memory_full_info().pss for each in (root, *root.children(recursive=True)))
        return {**found, "PSS MiB": pss / (1 << 20), "seconds to start": started}

    def peft(self, repository: Path) -> dict[str, float | None]:
        """The figures of one process with peft; all callers wait for one another."""
        folders = repository.parent / "adapters"
        names = sorted(each.name for each in folders.iterdir())
        checkpoint = str(BACKBONE.checkpoint(self.settings.quick))
        with Child(open_peft, checkpoint=checkpoint, folders=str(folders), names=names) as child:
            child.run((1, len(names)), warm=False)
            sample = child.run((1, self.sizes[1]), warm=False)
            found = summary(sample.value)
            rate, p50 = found["requests/s to the last answer"], found["p50 ms"]
            return {"requests/s 32": rate, "p50 ms 1": p50, "PSS MiB": sample.memory / (1 << 20)}

    def _figures(self, client: Child) -> dict[str, float | None]:
        figures: dict[str, float | None] = {}
        for case in self.sizes.items():
            found = summary(client.run(case, warm=False).value)
            figures[f"p50 ms {case[0]}"] = found["p50 ms"]
            figures[f"requests/s {case[0]}"] = found["requests/s to the last answer"]
        return figures


def measure(settings: Settings, figures: Figures, every: bool = False) -> None:
    """Each number of adapters beside one whole model in the same round."""
    ways, counts = Ways(settings), (1, 3) if settings.quick else COUNTS
    for count in counts:
        case = f"{count} adapters" if count > 1 else "1 adapter"
        with noted(figures, f"{ADAPTERS}, {case}"):
            say(f"exporting {case}")
            adapted = published(count, every, settings.quick) / "models"
            chosen: dict[str, Callable[[], dict[str, float | None]]] = {
                ONE: partial(ways.served, copies(1, settings.quick) / "models"),
                ADAPTERS: partial(ways.served, adapted),
            }
            if 1 < count <= MOST_WHOLE:
                chosen[WHOLE] = partial(ways.served, copies(count, settings.quick) / "models")
            if count <= MOST_PEFT:
                chosen[PEFT] = partial(ways.peft, adapted)
            for turn in range(settings.turns(3)):
                for way, take in chosen.items():
                    if not settings.ways or any(word in way for word in settings.ways):
                        add_measured(figures, way, case, turn, take)


def _goals(case: str) -> tuple[Goal, ...]:
    return (
        Goal(case, "PSS MiB", (ADAPTERS,), most=1.3, against=(ONE,)),
        Goal(case, "requests/s 32", (ADAPTERS,), least=0.8, against=(ONE,)),
        Goal(case, "p50 ms 1", (ADAPTERS,), most=1.15, against=(ONE,)),
    )


def _work(what: str, measured: Callable[[Settings, Figures], None]) -> Work:
    title = f"LoRA of rank {RANK} on {what} of distilbert-base, each with a head; texts of {WORDS} words"
    return Work(title, measured, COLUMNS, (ADAPTERS,), "requests/s 32", goals=_goals("50 adapters"))


WORKS: dict[str, Any] = {
    "attention": _work("queries and values", measure),
    "every": _work("all products", partial(measure, every=True)),
}

if __name__ == "__main__":
    sys.exit(run("adapters", WORKS))
