"""Hidden states to `logits`, and to `next_ids`, the best token of each row; the matrix may be the embedding's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hfx.exporter.graph.blocks import Head, Linear
from hfx.exporter.graph.linear import LinearWriter
from hfx.exporter.graph.writer import GraphWriter, Value

WANTS_LOGITS = "wants_logits"


@dataclass(frozen=True)
class HeadWriter:
    """Writes a head that has a matrix of its own with `linear`, one that is the embedding's with `table`."""

    writer: GraphWriter
    linear: LinearWriter
    table: LinearWriter

    def __call__(self, hidden: Value, head: Head, vocab_size: int) -> None:
        """logits [picks, vocabulary] of `hidden` [picks, hidden], and the best of each, next_ids [picks, 1].

        A head in int8 has an input more, wants_logits: without it, logits may be left out.
        """
        writer, tied = self.writer, head.embedding is not None
        product = self.table if tied else self.linear
        linear = head.linear if head.embedding is None else replace(head.linear, weight=head.embedding.table)
        if product.format == "int8":
            logits, best = self._int8(hidden, linear, product, head.loud)
        else:
            scores = product.scores(hidden, linear) if tied else product(hidden, linear)
            logits = scores if writer.compute is np.float32 else writer.cast(scores, np.float32)
            best = writer.unique("best")
            # TopK is twice as fast as ArgMax
            writer.nodes("TopK", [logits, writer.const([1], np.int64)], [writer.unique("value"), best], axis=-1)
        writer.output("next_ids", np.int64, ["picks", 1], best)
        writer.output("logits", np.float32, ["picks", vocab_size], logits)

    def _int8(
        self, hidden: Value, linear: Linear, product: LinearWriter, outliers: tuple[int, ...]
    ) -> tuple[Value, Value]:
        writer = self.writer
        wants_logits = writer.input(WANTS_LOGITS, np.bool_, [])
        if not outliers:
            logits, best = product.best(hidden, linear, wants_logits, None)
            return logits, best
        kept = np.ones(linear.weight.shape[1], np.float32)
        kept[list(outliers)] = 0
        columns = writer.vector(linear.weight.columns(outliers))
        channels = writer.node("Gather", [hidden, writer.const(outliers, np.int64)], axis=1)
        others = writer.node("Mul", [hidden, writer.const(kept, np.float32)])
        logits, best = product.best(others, linear, wants_logits, (channels, columns))
        return logits, best
