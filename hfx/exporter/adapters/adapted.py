"""The variant of adapters: a net that all adapters of a backbone share, and the adapter's own weights beside it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hfx.exporter.adapters.graph import AdaptedProducts, add_inputs, add_pool
from hfx.exporter.adapters.part import RECORD, AdapterPart, link_or_copy
from hfx.exporter.adapters.pool import LAYOUT_FILE, Layout
from hfx.exporter.encoder.graph.build import save
from hfx.exporter.encoder.graph.linears import float_weights
from hfx.exporter.encoder.graph.trace import TRACED, example
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.quantize.encoder import row_source, row_wise
from hfx.exporter.runtime import weight_levels
from hfx.exporter.variants.int8 import Native, copy_operators
from hfx.exporter.variants.variant import Net, Source
from hfx.manifest import hash_file, net_sha256
from hfx.python_backends.onnxruntime.config import ADAPTER_FILE, SHARED_NET, SKIPS_PADDING
from hfx.repository.config_pbtxt import TensorSpec


@dataclass(frozen=True)
class Adapted(Native):
    """The int8 net of a backbone on native operators, which read the adapter of each row from a pool.

    It takes sequences of up to `max_length` tokens. The first adapter of a backbone writes the net; the others link it.
    """

    name: ClassVar[str] = "adapted"
    part: AdapterPart
    max_length: int

    def outputs(self, outputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return the net's outputs, which may have room for more labels than the adapter has."""
        room = self.part.labels_room
        return tuple(replace(each, dims=(*each.dims[:-1], room)) for each in outputs) if room else outputs

    def write(self, source: Source) -> Net:
        """Write the net or links to it, its layout of the pool, and the adapter's own weights.

        Raises CheckpointUnsupported if the graph lacks a product that is adapted, or if the adapter does not fit the
        net that it shares.
        """
        path = source.folder / self.file
        written = (self._write_first if self.part.donor is None else self._write_linked)(source, path)
        skips_padding, weights, shared = written
        operators = copy_operators(source.folder, skips_padding) | {SHARED_NET: shared}
        net = {"max_length": self.max_length, SKIPS_PADDING: skips_padding, SHARED_NET: shared}
        return Net(self, path, operators, {"int8_weights": weights, RECORD: self.part.record() | net})

    def floats(self, source: Source) -> Collection[str]:
        """Return the names of the weights that stay float32."""
        return ()

    def _write_first(self, source: Source, path: Path) -> tuple[bool, int, str]:
        """Return whether the net skips padding, the number of its int8 weights, and its SHA-256."""
        floats, part = self.floats(source), self.part
        adapted = AdaptedProducts(part.rooms, Layout(int8=not floats))
        quantized = row_wise(source.graph, weight_levels(), floats, adapted)
        layout = adapted.layout
        missing = sorted(({*part.rooms.ranks} | {*part.rooms.heads}) - {*layout.places})
        layout.unused = [path for path in missing if _changes_nothing(source.model, path, source.inputs)]
        layout.refused |= dict.fromkeys(
            {*missing} - {*layout.unused, *layout.refused}, "is no product of the exported graph"
        )
        slot = part.slot(layout, source.model)
        add_inputs(quantized.model.graph, layout.stride)
        save(quantized.model, path)
        layout.write(path.with_name(LAYOUT_FILE))
        add_pool(path, slot, part.labels_room)
        files = {name: hash_file(path.with_name(name)) for name in (path.name, f"{path.name}.data")}
        return quantized.skips_padding, quantized.weights, net_sha256(files, path.name)

    def _write_linked(self, source: Source, path: Path) -> tuple[bool, int, str]:
        """Return what `_write_first` returned for the net that is linked."""
        donor = self.part.donor
        assert donor is not None
        self.part.slot(donor.layout, source.model).astype("<f4").tofile(path.with_name(ADAPTER_FILE))
        for file in (path.name, path.name + ".data", LAYOUT_FILE):
            link_or_copy(donor.net / file, path.with_name(file))
        weights: Any = donor.manifest.choices["int8_weights"]
        graph = (donor.net / path.name).relative_to(donor.repository).as_posix()
        return bool(donor.record[SKIPS_PADDING]), int(weights), net_sha256(donor.manifest.files, graph)


@dataclass(frozen=True)
class AdaptedFloats(Adapted):
    """The same net in float32."""

    name: ClassVar[str] = "adapted-fp32"
    precision: ClassVar[Precision] = "fp32"
    file: ClassVar[str] = "model.onnx"
    accuracy: ClassVar[str] = "fp32"

    def floats(self, source: Source) -> Collection[str]:
        """Return the names of all weights of products."""
        return frozenset(float_weights(row_source(source.graph).graph))


ADAPTED: tuple[type[Adapted], ...] = (Adapted, AdaptedFloats)


def _changes_nothing(model: Any, path: str, inputs: tuple[str, ...]) -> bool:
    """Return whether the outputs of `model` are the same, to the bit, without the weight of the layer at `path`."""
    import torch

    feed = dict(zip(inputs, example(model, inputs, *TRACED), strict=True))
    weight = model.get_submodule(path).weight
    with torch.no_grad():
        values = weight.clone()
        before = model(**feed)[0]
        weight.zero_()
        after = model(**feed)[0]
        weight.copy_(values)
    return torch.equal(before, after)
