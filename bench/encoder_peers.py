"""The peers as text classifiers, each opened in a process of its own, at two levels: with and without the tokenizer.

How a library runs a classifier stands in bench.peers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bench.peers.classifying import Classifying
from bench.peers.library import Library, Way
from bench.peers.model import Model
from bench.peers.nets import OpenNet
from bench.peers.resident import Prepare, Resident, Run, apart
from bench.peers.table import PEERS

# Its name in tables -> the peer.
NAMES = {"transformers on torch": "torch", "optimum, ONNX Runtime": "optimum", "optimum-intel, OpenVINO": "openvino"}
THREADS = os.cpu_count() or 1
LONGEST = 512  # tokens; no text here has as many


@dataclass(frozen=True)
class Case:
    """`batch` times the same text; `level` is "text" (text in, label out) or "net" (tensors in, logits out)."""

    text: str
    batch: int
    level: str

    @property
    def texts(self) -> list[str]:
        """The batch."""
        return [self.text] * self.batch


def precisions(name: str, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a peer in NAMES of what is ASKED for; torch is the one that has float32 alone, and always."""
    return ("fp32",) if NAMES[name] == "torch" else asked


def opened(name: str, checkpoint: Path, folder: Path, precision: str) -> Resident:
    """A peer in NAMES, the checkpoint converted for it in `folder`. Raises OpenFailed, FetchFailed."""
    if NAMES[name] == "openvino" and precision == "fp32":
        precision = "bf16"  # float32 weights, computed as OpenVINO does by default (encoder_report.PEER_NOTES)
    way, target = _way(name), folder / f"{NAMES[name]}-{precision}"
    model = Model(checkpoint.name, str(checkpoint), str(checkpoint), "", None, 0)
    arguments = {"model": model, "folder": str(target), "fetched": way.fetched, "precision": precision}
    if way.convert is not None and not target.is_dir():
        apart(way.convert, **arguments)
    return Resident(open_levels, opener=way.open_net, **arguments)


def open_levels(opener: OpenNet, model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """Answers a Case."""
    net: Classifying = opener(model, folder, fetched, precision, THREADS)

    def prepare(case: Case) -> Run:
        if case.level == "text":
            return lambda: net.labels(case.texts, LONGEST)
        feed = net.encoded(case.texts)
        return lambda: net.logits(feed)

    return prepare


def _way(name: str) -> Way:
    peer = PEERS[NAMES[name]]
    assert isinstance(peer, Library)
    return peer.ways["classifier"]
