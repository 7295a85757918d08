"""Two graphs without weights that work on rows of scores: log-softmax, and the best k of each row."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hfx.exporter.graph.writer import GraphWriter


def log_softmax_graph(path: Path, vocab_size: int) -> None:
    """scores [rows, vocabulary] -> log_probs [rows, vocabulary]."""
    writer = GraphWriter("log_softmax", None)
    scores = writer.input("scores", np.float32, ["rows", vocab_size])
    writer.output("log_probs", np.float32, ["rows", vocab_size], writer.node("LogSoftmax", [scores], axis=-1))
    writer.save(path)


def top_k_graph(path: Path) -> None:
    """scores [rows, vocabulary], k [1] -> values and ids [rows, k], best first, the lowest id first among equals."""
    writer = GraphWriter("top_k", None)
    scores = writer.input("scores", np.float32, ["rows", "vocab"])
    k = writer.input("k", np.int64, [1])
    writer.nodes("TopK", [scores, k], ["values", "ids"], axis=-1, largest=1, sorted=1)
    writer.output("values", np.float32, ["rows", "k"], "values")
    writer.output("ids", np.int64, ["rows", "k"], "ids")
    writer.save(path)
