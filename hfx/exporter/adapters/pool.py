"""Where the weights of an adapter are in the pool, the float32 tensor [slots, stride] that its net reads.

A slot holds one adapter: for each adapted product of the backbone a low-rank pair, and for each layer of the head a
matrix and its bias. All adapters of one net share its layout, whose places have room for other ranks and other numbers
of labels. The operators that read the pool are LowRank and AdapterLinear (graph/adapter_definitions.py).

The pool of a net in int8 has its matrices in int8: four weights in the place of a float, and a float32 scale for each
row of a matrix.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.errors import CheckpointUnsupported
from hfx.exporter.adapters.adapter_config import MERGE
from hfx.exporter.adapters.folder import LowRank
from hfx.exporter.model_files import write_json
from hfx.exporter.quantize.generator import ALL_LEVELS, int8_rows
from hfx.strict_json import read_text

HEADER = 16  # floats before a low-rank pair, the first of which is the pair's rank
LAYOUT_FILE = "adapters.json"
LAYOUT_BYTES = 4 << 20
LEAST_RANK = 8
LABELS_STEP = 16  # a head with several labels has room for a multiple of this number
MOST_PARTS = 3  # linears side by side in one operator
AGAIN = (
    "Export all adapters of this backbone again, with this one among them, into another repository or by --force. If "
    "it is refused there, merge it, and export the merged model by itself."
)
Matrix = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a layer's weights in a slot, in floats.

    A product of the backbone has `rank`, the largest rank that fits; a layer of the head has rank 0. The matrices are
    `int8` or float32.
    """

    offset: int
    inputs: int
    outputs: int
    rank: int = 0
    int8: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The floats of the parts.

        A product has the header, the scales of the ranks (int8 only), A and B. A layer of the head has weights and
        biases, or, in int8, scales, biases and weights.
        """
        if self.rank:
            a, b = self._floats(self.rank * self.inputs), self._floats(self.rank * self.outputs)
            return (HEADER, self.rank, a, b) if self.int8 else (HEADER, a, b)
        weights = self._floats(self.outputs * self.inputs)
        return (self.outputs, self.outputs, weights) if self.int8 else (weights, self.outputs)

    @property
    def size(self) -> int:
        """The number of floats of all parts."""
        return sum(self.sizes)

    def parts(self, slot: Matrix) -> list[Matrix]:
        """Return views of the parts in a slot [stride]."""
        ends = np.cumsum([self.offset, *self.sizes])
        return np.split(slot, ends)[1:-1]

    def _floats(self, weights: int) -> int:
        return -(-weights // 4) if self.int8 else weights


@dataclass(frozen=True)
class Rooms:
    """What the adapters of one net may have: product -> largest rank, and layer of the head -> most outputs."""

    ranks: Mapping[str, int]
    heads: Mapping[str, int]

    @classmethod
    def of(cls, products: Iterable[Mapping[str, LowRank]], heads: Iterable[Mapping[str, int]]) -> Rooms:
        """Return the rooms for adapters with these products, and with heads of these numbers of outputs."""
        ranks, outputs = dict[str, int](), dict[str, int]()
        for each in products:
            for path, pair in each.items():
                ranks[path] = max(ranks.get(path, LEAST_RANK), 1 << max(0, pair.rank - 1).bit_length())
        for head in heads:
            for path, count in head.items():
                room = count if count == 1 else -(-count // LABELS_STEP) * LABELS_STEP
                outputs[path] = max(outputs.get(path, 0), room)
        return cls(ranks, outputs)

    def without(self, paths: Set[str]) -> Rooms:
        """Return the rooms without some layers. A layer that is a product and one of the head is one of the head."""
        return Rooms(
            {path: rank for path, rank in self.ranks.items() if path not in paths | self.heads.keys()},
            {path: outputs for path, outputs in self.heads.items() if path not in paths},
        )


@dataclass
class Layout:
    """The places of all layers in a slot, by the layers' paths in the model. `add` gives a layer the next place.

    The matrices of all layers are `int8`, or all are float32. `unused` are layers that adapters may have, but whose
    weights change no answer, such as an unused pooler's. `refused` are layers that adapters of this net can't have,
    with the reasons.
    """

    int8: bool = False
    places: dict[str, Place] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """The floats of a slot."""
        return sum(place.size for place in self.places.values())

    @property
    def rooms(self) -> Rooms:
        """The rooms of the places."""
        return Rooms(
            {path: place.rank for path, place in self.places.items() if place.rank},
            {path: place.outputs for path, place in self.places.items() if not place.rank},
        )

    def has(self, rooms: Rooms) -> bool:
        """Return whether the places have just these rooms."""
        without = {*self.unused, *self.refused}
        return self.rooms.without(without) == rooms.without(without)

    def add(self, path: str, inputs: int, outputs: int, rank: int = 0) -> Place:
        """Return the place of a layer, which may be read by several nodes of a graph."""
        if path not in self.places:
            self.places[path] = Place(offset=self.stride, inputs=inputs, outputs=outputs, rank=rank, int8=self.int8)
        return self.places[path]

    def check(self, paths: Iterable[str]) -> None:
        """Raise CheckpointUnsupported if adapters of this net can't have one of the layers `paths`."""
        for path in sorted(paths):
            if path in self.refused:
                fix = f"{MERGE} Or train it without this layer."
                raise CheckpointUnsupported(f"It adapts {path}, which {self.refused[path]}.", fix)
            if path not in self.places and path not in self.unused:
                raise CheckpointUnsupported(
                    f"It adapts {path}, which the others on this backbone leave as it is.", AGAIN
                )

    def slot(self, products: Mapping[str, LowRank], heads: Mapping[str, tuple[Matrix, Matrix]]) -> Matrix:
        """Return the slot [stride] of an adapter.

        `products` has the low-rank pairs, and `heads` the weights [outputs, inputs] and biases [outputs] of the head.
        Raises CheckpointUnsupported if the adapter does not fit.
        """
        self.check(products)
        slot = np.zeros(self.stride, np.float32)
        for path, place in self.places.items():
            if not place.rank:
                _write_head(path, place, *heads[path], slot)
            elif path in products:
                _write_pair(path, place, products[path], slot)
        return slot

    def write(self, path: Path) -> None:
        """Write the layout as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Layout:
        """Read a layout that `write` has written."""
        stated: Any = json.loads(read_text(path, LAYOUT_BYTES))
        places = {str(name): Place(**place) for name, place in stated["places"].items()}
        return cls(stated["int8"], places, stated["unused"], stated["refused"])


def _write_pair(path: str, place: Place, pair: LowRank, slot: Matrix) -> None:
    rank = pair.rank
    if rank > place.rank:
        raise CheckpointUnsupported(f"Its rank at {path} is {rank}; the others' net has room for {place.rank}.", AGAIN)
    if pair.a.shape[1] != place.inputs or pair.b.shape[0] != place.outputs:
        raise CheckpointUnsupported(
            f"Its matrices at {path} are for {pair.a.shape[1]} inputs and {pair.b.shape[0]} outputs; the backbone's "
            f"layer has {place.inputs} and {place.outputs}.",
            "Give the backbone that the adapter was trained on.",
        )
    header, *scales, a, b = place.parts(slot)
    header[0] = rank
    if place.int8:
        scales[0][:rank] = _write_int8(pair.a, a) * _write_int8(pair.b.T, b)
    else:
        a[: pair.a.size], b[: pair.b.size] = pair.a.ravel(), pair.b.T.ravel()


def _write_head(path: str, place: Place, weight: Matrix, bias: Matrix, slot: Matrix) -> None:
    outputs, inputs = weight.shape
    if outputs > place.outputs or inputs != place.inputs:
        raise CheckpointUnsupported(
            f"Its head's {path} has {inputs} inputs and {outputs} outputs; the others' net has {place.inputs}, and "
            f"room for {place.outputs}.",
            AGAIN,
        )
    if place.int8:
        scales, biases, weights = place.parts(slot)
        scales[:outputs] = _write_int8(weight, weights)
    else:
        weights, biases = place.parts(slot)
        weights[: weight.size] = weight.ravel()
    biases[:outputs] = bias


def _write_int8(rows: Matrix, part: Matrix) -> Matrix:
    """Write the bytes of `rows` [n, k] in int8 to `part`, and return the scale of each row [n]."""
    values, scale = int8_rows(rows, ALL_LEVELS)
    part.view(np.int8)[: values.size] = values.ravel()
    return scale


def parts_of(layout: Layout, rooms: Rooms, parts: Sequence[tuple[str, int]], inputs: int) -> dict[str, int] | None:
    """Return the attributes of LowRank for linears side by side, of which at least one is adapted.

    `parts` has the path of each linear, and its number of outputs. Linears that are adapted get places in `layout`, one
    behind the other. Returns None if they have places elsewhere.
    """
    ranks = [rooms.ranks.get(path, 0) for path, _ in parts]
    adapted = zip(parts, ranks, strict=True)
    places = [layout.add(path, inputs, outputs, rank) for (path, outputs), rank in adapted if rank]
    ends = [place.offset + place.size for place in places]
    if [place.offset for place in places[1:]] != ends[:-1]:
        return None
    attributes = {"in_features": inputs, "offset": places[0].offset}
    for index in range(MOST_PARTS):
        attributes[f"columns{index}"] = parts[index][1] if index < len(parts) else 0
        attributes[f"rank{index}"] = ranks[index] if index < len(parts) else 0
    return attributes
