"""hfx's own way: the engine on an exported engine folder, through submit and result, in this process.

Owns how a case becomes requests. What the engine spends on a step is in generation_steps.py.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.arrivals import Served
from bench.generation_cases import THREADS, Batch, Load
from bench.peers.model import Model
from bench.peers.resident import Prepare, Run

if TYPE_CHECKING:
    from hfx.exporter.quantize.generator import Formats
    from hfx.python_backends.engine.core import Observer
    from hfx.python_backends.engine.engine import Engine
    from hfx.python_backends.engine.handle import Handle
    from hfx.python_backends.engine.request import Request

POLL_SECONDS = 0.004
LONGEST_QUEUE = 100_000  # a load is served, however long it takes


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """Write the engine folder of the checkpoint, for both runtimes and without the gate; of int4, the head is int8."""
    from hfx.exporter.quantize.generator import FORMATS

    _write(model, folder, FORMATS[precision])


def convert_fastest(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The same in the form that `hfx export` tries first: of int4, head and embedding have 4 bits too."""
    from hfx.exporter.quantize.generator import FORMATS_TRIED

    _write(model, folder, FORMATS_TRIED[precision][0])  # type: ignore[index]


def _write(model: Model, folder: str, formats: Formats) -> None:
    from hfx.exporter.generation.engine_folder import write_engine_folder
    from hfx.exporter.runtime import weight_levels
    from hfx.exporter.source import open_checkpoint

    write_engine_folder(open_checkpoint(model.checkpoint), Path(folder), formats, weight_levels(), openvino=True)


def open_way(model: Model, folder: str, fetched: str, precision: str, runtime: str) -> Prepare:
    """The engine on `runtime`, opened for each batch with as many slots as it has rows."""
    engines: dict[int, Engine] = {}

    def opened(slots: int) -> Engine:
        if slots not in engines:
            engines[slots] = open_engine(folder, slots, LONGEST_QUEUE, runtime)
        return engines[slots]

    def prepare(case: Batch | Load) -> Run:
        if isinstance(case, Load):
            return lambda: _serve(opened(case.slots), case, model.start)
        engine = opened(case.rows * case.beams)
        wanted = requests(case, model.start)

        def run() -> tuple[int, ...]:
            handles = [engine.submit(request) for request in wanted]
            return tuple(len(handle.result()[0].ids) for handle in handles)

        return run

    return prepare


def open_engine(folder: str | Path, slots: int, queue: int, runtime: str, observer: Observer | None = None) -> Engine:
    """The engine that is measured."""
    from hfx.python_backends.engine.engine import Engine

    return Engine.open(folder, slots=slots, max_queue=queue, threads=THREADS, runtime=runtime, observer=observer)


def requests(case: Batch, start: int | None) -> list[Request]:
    """One request a row; without end tokens, none ends early."""
    from hfx.python_backends.engine.request import Request, Settings

    settings = Settings(
        max_tokens=case.new,
        num_beams=case.beams,
        no_repeat_ngram_size=case.ngram,
        decoder_prompt=() if start is None else (start,),
    )
    return [Request(tuple(prompt), settings) for prompt in case.prompts()]


def bounded(folder: Path, positions: int) -> Path:
    """The engine folder `folder` again, with room for `positions` a row: its files, and another engine.json."""
    target = folder.with_name(f"{folder.name}-{positions}")
    if not target.is_dir():
        staging = Path(tempfile.mkdtemp(dir=folder.parent))
        for path in folder.iterdir():
            os.link(path, staging / path.name)  # a link of the other kind would leave the model's folder
        facts = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
        (staging / "engine.json").unlink()
        (staging / "engine.json").write_text(json.dumps({**facts, "max_length": positions}), encoding="utf-8")
        staging.rename(target)
    return target


def _serve(engine: Engine, load: Load, start: int | None) -> Served:
    from hfx.python_backends.engine.request import Request, Settings

    prompt = () if start is None else (start,)
    arrivals = load.arrivals()
    coming = [
        (each.at, Request(each.prompt, Settings(max_tokens=each.new, decoder_prompt=prompt))) for each in arrivals
    ]
    running: dict[int, Handle] = {}
    ends = [0.0] * len(coming)
    begin, submitted = time.perf_counter(), 0
    while submitted < len(coming) or running:
        while submitted < len(coming) and coming[submitted][0] <= time.perf_counter() - begin:
            running[submitted] = engine.submit(coming[submitted][1])
            submitted += 1
        time.sleep(POLL_SECONDS)
        now = time.perf_counter() - begin
        for number in [number for number, handle in running.items() if handle.done]:
            handle = running.pop(number)
            if len(handle.result()[0].ids) != arrivals[number].new:
                raise ValueError(f"request {number} has not {arrivals[number].new} tokens")
            ends[number] = now
    return Served.of(load, ends)
