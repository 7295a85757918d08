"""Where the nets of an engine run: on the host, or on a GPU. All that depends on this is a method of a placement.

`Host` runs as few rows as exact answers allow (probes.py), and gives light requests a batch of their own. `Cuda`
captures runs as CUDA graphs (captures.py), so it has few shapes of runs (`run_size`, staging.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import DeviceLost, EngineError
from .captures import CapturedNet, open_captured, open_on_gpu
from .device_memory import Copier, Device, DeviceArray, DeviceCounts
from .fair_scheduler import LIGHT_ROWS
from .kv_cache import DeviceCache, KvCache, PrefixBlocks
from .partition import DecoderPartition, StepSize
from .plan import DEVICE_LIMITS, Limits, padded
from .prefill import ArraySources, CacheSources, Prefill
from .probes import MOST_LEAST, probe, rows_for
from .scores import DeviceScores, HostScores, Scores
from .sessions import HostNet, Reserved, SessionSettings, check_products, open_session
from .spec import EngineSpec
from .staging import PromptStage, SourceStage, warm_steps

LOG = logging.getLogger(__name__)
Prompts = Union[Prefill, PromptStage]
Sources = Union[ArraySources, CacheSources, SourceStage]


class Host:
    """Nets run on the CPU, and all memory is on the host."""

    runs_ahead = False  # whether a step may begin before it is planned

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        # Native operators give a prompt the same bits whole, in a batch, and in parts. Each run has a cost of its own.
        self.limits = Limits(alone=512) if settings.operators else Limits()
        self.counts = DeviceCounts()  # always zero

    def open(self, path: Path) -> HostNet:
        """Open the graph of a decoder. Raises ModelDamaged or ProviderMissing."""
        return HostNet(open_session(path, self.settings, is_decoder=True))

    def prompts(
        self, spec: EngineSpec, partition: DecoderPartition, slots: int, blocks: PrefixBlocks | None
    ) -> Prefill:
        """Return what runs prompts in the rows of a partition. `blocks` are the memory of a prefix cache, if any."""
        prompts = Prefill(spec, partition, slots, blocks)
        prompts.needs_outputs = self.settings.operators is None
        return prompts

    def sources(self, spec: EngineSpec, encoder: Path) -> Sources:
        """Open the graph of an encoder, and return what runs it."""
        net = HostNet(open_session(encoder, self.settings))
        return CacheSources(spec, net, self) if spec.cross_type == "float16" else ArraySources(spec, net)

    def scores(self, spec: EngineSpec, slots: int) -> Scores:
        """Return what edits and ranks the scores of at most `slots` rows."""
        return HostScores(spec, slots, self.settings)

    def cache(self, shape: tuple[int, ...], dtype: DTypeLike) -> KvCache:
        """Return a cache [parts, rows, heads, capacity, head_dim]."""
        return KvCache(shape, dtype)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        """Return memory beside the caches."""
        return Reserved(shape, dtype).array

    def groups(self, spec: EngineSpec, groups: int) -> int:
        """Return for how many groups a partition of `groups` needs memory: probes and padding take more."""
        return rows_for(groups) if spec.has_encoder else groups + MOST_LEAST

    def run_size(self, groups: int, most: int) -> int:
        """Return the number of groups of a step of `groups`."""
        return groups

    def probe(self, spec: EngineSpec, partition: DecoderPartition, groups: int) -> tuple[StepSize, bool]:
        """Return the size of steps of a new partition, and whether it can verify drafts."""
        return probe(spec, partition, groups, is_native=self.settings.operators is not None)

    def light_rows(self, beams: Collection[int]) -> int:
        """Return the most rows of a light request (see FairScheduler) if `beams` are the usual numbers of beams."""
        return max(beams, default=LIGHT_ROWS)

    def check_products(self, spec: EngineSpec) -> None:
        """Raise ProcessorUnsuited if ONNX Runtime's own operators get the model's matrix products wrong here."""
        check_products(spec)

    def check(self) -> None:
        """Do nothing: a CPU is not lost."""

    def warm(self, partitions: Iterable[DecoderPartition], seconds: float) -> None:
        """Do nothing: no run is captured."""

    def wait(self) -> None:
        """Do nothing: a run that was begun is over."""

    def close(self) -> None:
        """Do nothing: memory may be freed at any time."""


class Cuda:
    """Nets run on a GPU. Keys, values and logits stay in its memory; `counts` say what was done there."""

    limits = DEVICE_LIMITS
    runs_ahead = True

    def __init__(self, settings: SessionSettings, device: Device | None = None) -> None:
        self.settings = settings
        name, number = settings.provider.lower(), settings.device_id
        self.device = device or Device(name, number, Copier(number))
        self.counts = DeviceCounts()
        self._stages: list[PromptStage | SourceStage] = []

    def open(self, path: Path) -> CapturedNet:
        """Open a graph. Raises ModelDamaged or ProviderMissing."""
        return open_captured(path, self.settings, self.device, self.counts)

    def prompts(
        self, spec: EngineSpec, partition: DecoderPartition, slots: int, blocks: PrefixBlocks | None
    ) -> PromptStage:
        """Return what runs prompts in staging memory, and copies them to the rows of a partition."""
        stage = PromptStage(spec, partition, slots, self)
        self._stages.append(stage)
        return stage

    def sources(self, spec: EngineSpec, encoder: Path) -> Sources:
        """Open the graph of an encoder, and return what runs it. Only results in float16 stay on the device."""
        if spec.cross_type != "float16":
            return ArraySources(spec, HostNet(open_on_gpu(encoder, self.settings)))
        stage = SourceStage(spec, self.open(encoder), self.device, self.counts)
        self._stages.append(stage)
        return stage

    def scores(self, spec: EngineSpec, slots: int) -> Scores:
        """Return what edits and ranks scores: on the host alone for a model of an earlier version, without a graph."""
        on_host = HostScores(spec, slots, self.settings)
        if spec.files.choose is None:
            folder = spec.files.top_k.parent
            LOG.warning(
                "%s has no graph for choices, so all logits are copied to the host. Export the model again", folder
            )
            return on_host
        net = open_captured(spec.files.choose, self.settings, self.device, DeviceCounts())
        return DeviceScores(spec, net, self.device, on_host)

    def cache(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceCache:
        """Return a cache [parts, rows, heads, capacity, head_dim]."""
        cache = DeviceCache(self.device, shape, dtype)
        self.counts.device_cache_bytes += cache.nbytes
        return cache

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Return memory beside the caches."""
        return self.device.allocate(shape, dtype)

    def groups(self, spec: EngineSpec, groups: int) -> int:
        """Return for how many groups a partition of `groups` needs memory."""
        return groups

    def run_size(self, groups: int, most: int) -> int:
        """Return the number of groups of a step of `groups`, which is one of few; `most` have memory."""
        return padded(groups, 1, most)

    def probe(self, spec: EngineSpec, partition: DecoderPartition, groups: int) -> tuple[StepSize, bool]:
        """Return that steps may have any size, and that drafts are not verified."""
        return StepSize(), False

    def light_rows(self, beams: Collection[int]) -> int:
        """Return 0: all requests share one batch."""
        return 0

    def check_products(self, spec: EngineSpec) -> None:
        """Do nothing: a GPU has the products of all formats."""

    def check(self) -> None:
        """Raise DeviceLost if the GPU can't be used any longer."""
        try:
            self.wait()
        except DeviceLost:
            raise
        except EngineError:
            LOG.exception("the GPU can't be asked whether it works")

    def warm(self, partitions: Iterable[DecoderPartition], seconds: float) -> None:
        """Capture the commonest runs, for about `seconds`, before any request. The engine's thread must call this.

        ONNX Runtime replays a graph only in the thread in which it was captured.
        """
        end = time.monotonic() + seconds
        try:
            for partition in partitions:
                warm_steps(partition, end)
            for stage in self._stages:
                stage.warm(end)
        except DeviceLost:
            raise
        except Exception:  # a request fails in the same way, or its run is smaller
            LOG.exception("not all runs could be captured before the first request")
        self.counts.restart()

    def wait(self) -> None:
        """Wait for the end of all runs that were begun. Raises EngineError."""
        self.device.copier.synchronize()

    def close(self) -> None:
        """Wait until nothing uses memory that will be freed."""
        with suppress(EngineError):  # a lost device does not use it, either
            self.wait()
        self._stages.clear()


Placement = Union[Host, Cuda]
PLACEMENTS = {"CPU": Host, "CUDA": Cuda}  # by SessionSettings.provider
