"""The peer of the seed load: MLServer's HuggingFace runtime on the same weights and words, by this benchmark's door.

Owns the copy of the checkpoint that it serves. The server itself is bench.peers.mlserver's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.generation_cases import open_model
from bench.peers.cases import Wanted
from bench.peers.mlserver import PATH, served
from bench.peers.mlserver_client import PATIENCE, request, rows
from bench.peers.model import Reading
from bench.peers.resident import Prepare, Resident
from bench.serve_answers import Piece
from bench.serve_cases import SEED_TOKENS, Ask
from bench.serve_doors import PostDoor, driven
from bench.serve_model import CHECKPOINT, with_words
from hfx.names import Task
from hfx.perf.cache import made

MLSERVER = "MLServer, HuggingFace runtime"
PRECISION = "bf16"  # three times as fast as float32 here
POSITIONS = 1024


@contextmanager
def opened(tiny: bool) -> Iterator[Resident]:
    """A client of a server that is ready; answers (MLSERVER, load) with Measured. Raises OpenFailed, FetchFailed."""
    reading, wanted = Reading(Task.TEXT_GENERATION, "decoder", "", POSITIONS), Wanted(SEED_TOKENS)
    with (
        served(_checkpoint(tiny), reading, wanted, PRECISION, os.cpu_count() or 1, PATIENCE) as server,
        Resident(open_client, address=server.address) as client,
    ):
        yield client


def open_client(address: str) -> Prepare:
    """A client of the server at HOST:PORT."""
    return driven({MLSERVER: PostDoor(address, f"{PATH}/infer", _request, _answer)})


def _request(ask: Ask) -> bytes:
    return request([ask.text])


def _answer(body: bytes) -> Piece:
    return Piece(rows(body)[0]["generated_text"], "length", 0, SEED_TOKENS)


def _checkpoint(tiny: bool) -> Path:
    source = Path(open_model(CHECKPOINT, tiny).checkpoint)
    folder = made(
        f"models/words-{source.parent.name}-{CHECKPOINT}", lambda staging: with_words(source, staging / "model")
    )
    return folder / "model"
