"""Memory of a process: what it holds now, and the most that it ever held.

Also the ways whose memory is compared: each opened and run once in a fresh process. Knows no tables.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen

from bench.generation_cases import THREADS, Batch, Model
from bench.peers.cases import Wanted
from bench.peers.memory import peak_bytes, resident_bytes, status
from bench.peers.resident import Prepare

POLL_SECONDS = 0.05
ITEM_BYTES = {"float32": 4, "float16": 2, "f32": 4, "f16": 2, "u8": 1}


@dataclass(frozen=True)
class Memory:
    """Bytes that a process holds: before the library is imported, with the model open, after a run, and at most ever.

    `pool` is what K and V of all slots take, 0 where nothing is known of it.
    """

    before: int
    loaded: int
    after: int
    peak: int
    pool: int = 0


def open_ours(model: Model, folder: str, fetched: str, precision: str, runtime: str) -> Prepare:
    """hfx's engine with a slot for each row, and room for just the positions of the case; answered with Memory."""
    before = resident_bytes()

    def run(case: Batch) -> Memory:
        from bench.generation_ours import bounded, open_engine, requests

        engine = open_engine(bounded(Path(folder), case.positions), case.rows, case.rows, runtime)
        loaded = resident_bytes()
        for handle in [engine.submit(request) for request in requests(case, model.start)]:
            handle.result()
        after, spec = resident_bytes(), engine.spec
        pages = spec.openvino.kv_type if runtime == "openvino" and spec.openvino else spec.kv_type
        pool = 2 * spec.layers * case.rows * spec.heads * case.positions * spec.head_dim * ITEM_BYTES[pages]
        return Memory(before, loaded, after, peak_bytes(), pool)

    return lambda case: partial(run, case)


def open_ctranslate2(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """CTranslate2 on the same batch; answered with Memory."""
    before = resident_bytes()

    def run(case: Batch) -> Memory:
        from bench.peers.ctranslate2 import Net

        net = Net(model, folder, fetched, THREADS)
        loaded = resident_bytes()
        net.generate(case.prompts(), Wanted(case.new))
        return Memory(before, loaded, resident_bytes(), peak_bytes())

    return lambda case: partial(run, case)


def watched(process: Popen[bytes], seconds: float) -> tuple[int, bool]:
    """Wait for the end of `process` for at most `seconds`.

    Returns the most that it and its descendants held together, looked at every 50 ms, and whether it has ended.
    """
    most, begin = 0, time.perf_counter()
    while process.poll() is None:
        if time.perf_counter() - begin > seconds:
            return most, False
        most = max(most, sum(map(resident_bytes, _family(process.pid))))
        time.sleep(POLL_SECONDS)
    return most, True


def _family(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            children.setdefault(status(path.name, "PPid", 1), []).append(int(path.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found
