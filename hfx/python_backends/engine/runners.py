"""The runners of decoder-only models and of encoder-decoders, which carry out plans.

All calls except `open_partition` come from one thread, in the order of the plans. One graph runs prompts, parts of
prompts and steps of a decoder-only model; an encoder-decoder has a decoder graph for each width of partition.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Union

from ..checks import Ids
from .captures import Net
from .kv_cache import Pairs
from .partition import DecoderPartition, Outputs, StepSize
from .placement import Placement, Prompts, Sources
from .plan import Span
from .spec import NATIVE, ONNXRUNTIME, EngineSpec

WIDTH = 1


class Decoders:
    """The open decoders of a model, which the runners of all batches share. Any thread may use them.

    `slots` is the number of rows of a runner.
    """

    def __init__(self, spec: EngineSpec, slots: int, placement: Placement) -> None:
        self.spec, self.slots, self.placement = spec, slots, placement
        self.opening = threading.Lock()
        self._nets: dict[int, Net] = {}  # by width
        self._probed: dict[int, tuple[StepSize, bool]] = {}

    @property
    def runtime(self) -> str:
        """The runtime: NATIVE or ONNXRUNTIME."""
        return NATIVE if self.placement.settings.operators else ONNXRUNTIME

    def partition(self, width: int) -> DecoderPartition:
        """Return new rows of the decoder for `width` beams. The first call of a width opens and probes the decoder."""
        spec, placement, groups = self.spec, self.placement, self.slots // width
        if width not in self._nets:
            self._nets[width] = placement.open(spec.files.decoder[width])
        partition = DecoderPartition(spec, width, placement.groups(spec, groups), self._nets[width], placement)
        if width not in self._probed:
            self._probed[width] = placement.probe(spec, partition, groups)
        partition.size, partition.verifies = self._probed[width]
        return partition


class DecoderRunner:
    """The runner of a model without an encoder, whose decoder runs prompts, too.

    All rows are in one partition. The memory of a prefix cache is that of `first`, another runner of the same model.
    """

    def __init__(self, decoders: Decoders, first: DecoderRunner | None = None) -> None:
        self.decoders, self.placement, self.runtime = decoders, decoders.placement, decoders.runtime
        self.partition = decoders.partition(WIDTH)
        self.partitions = {WIDTH: self.partition}
        blocks = None if first is None else first.prompts.blocks
        self.prompts: Prompts = self.placement.prompts(decoders.spec, self.partition, decoders.slots, blocks)

    def second(self) -> DecoderRunner:
        """Return another runner of the same session, with its own rows. The two never run at the same time."""
        return DecoderRunner(self.decoders, self)

    def open_partition(self, width: int) -> None:
        """Do nothing: the only partition is open."""

    def run(self, spans: Sequence[Span], logits: bool) -> Outputs:
        """Run whole prompts, or a part of a prompt. After the run, all rows of a span have its prompt."""
        return self.prompts.run(spans, logits)

    def keep_prefixes(self, size: int) -> int:
        """Reserve `size` bytes for a prefix cache, before any run. Return the number of blocks that they hold."""
        return self.prompts.keep_prefixes(size)

    @property
    def same_in_parts(self) -> bool:
        """Whether the bits of answers are known not to depend on the parts that a prompt is run in."""
        return self.prompts.same_in_parts

    def release_memory(self) -> None:
        """Give the cache's pages back to the operating system."""
        self.partition.release_memory(0)

    def close(self) -> None:
        """Release the bindings and the session."""
        self.placement.close()
        self.partitions.clear()
        del self.partition, self.prompts, self.decoders


class EncoderDecoderRunner:
    """The runner of a model with an encoder, which reads the prompts.

    It has a partition for each width, with room for all slots. A partition is opened when the first request of its
    width arrives, if not before. The encoder is that of `first`, another runner of the same model.
    """

    same_in_parts = False  # sources are run whole

    def __init__(self, decoders: Decoders, first: EncoderDecoderRunner | None = None) -> None:
        self.decoders, self.placement, self.runtime = decoders, decoders.placement, decoders.runtime
        encoder = decoders.spec.files.encoder
        assert encoder is not None
        self.sources: Sources = self.placement.sources(decoders.spec, encoder) if first is None else first.sources
        self.partitions: dict[int, DecoderPartition] = {}

    def second(self) -> EncoderDecoderRunner:
        """Return another runner of the same sessions, whose partitions are opened with its own first requests."""
        return EncoderDecoderRunner(self.decoders, self)

    def open_partition(self, width: int) -> None:
        """Load the decoder for `width` beams, once, and reserve its memory. Any thread may call this."""
        if width in self.partitions:
            return
        with self.decoders.opening:
            if width not in self.partitions:
                self.partitions[width] = self.decoders.partition(width)

    def encode(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """Encode `sources`. Each (width, group) of `places[i]` gets the cross K/V of source i, and empty rows."""
        for groups, fill in zip(places, self.sources.run(sources), strict=True):
            for width, group in groups:
                fill(self.partitions[width], group)

    def keep_prefixes(self, size: int) -> int:
        """Return 0: sources have no prefix cache."""
        return 0

    def trim(self, groups: Pairs) -> None:
        """Free memory of groups that are not in use.

        `groups` has a (width, number of groups in use) pair for each partition. If the partitions have touched the
        memory of more than `slots` rows in all, each frees the memory of groups that it does not use.
        """
        in_use = dict(groups)
        partitions = tuple(self.partitions.items())  # another thread may open one
        for width, partition in partitions:
            partition.touched = max(partition.touched, in_use.get(width, 0))
        if sum(width * partition.touched for width, partition in partitions) > self.decoders.slots:
            for width, partition in partitions:
                partition.release_memory(in_use.get(width, 0))

    def release_memory(self) -> None:
        """Give the pages of all partitions and of the encoder's output back to the operating system."""
        self.sources.release_memory()
        for partition in tuple(self.partitions.values()):
            partition.release_memory(0)

    def close(self) -> None:
        """Release the bindings and the sessions."""
        self.placement.close()
        self.partitions.clear()
        del self.sources, self.decoders


Runner = Union[DecoderRunner, EncoderDecoderRunner]


def new_runner(spec: EngineSpec, slots: int, placement: Placement) -> Runner:
    """Return the runner of a model's kind."""
    return (EncoderDecoderRunner if spec.has_encoder else DecoderRunner)(Decoders(spec, slots, placement))
