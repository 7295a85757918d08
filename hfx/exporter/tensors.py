"""Read a checkpoint's tensors by name, a slice at a time and never all at once.

Tensors that are missing or have another shape are refused by name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.errors import CheckpointCorrupt
from hfx.exporter.checkpoint_files import unpickled
from hfx.exporter.config_file import AGAIN
from hfx.exporter.graph.blocks import FloatArray, Linear, Parameter
from hfx.exporter.source import Checkpoint

NAMES_SHOWN = 6
# What torch.compile, DataParallel, both, and training loops put before the names of a model's tensors.
WRAPPERS = ("_orig_mod.module.", "module._orig_mod.", "_orig_mod.", "module.", "model.")
MISSHAPEN, MISSING = "has tensors of other shapes than config.json says", "lacks tensors"
ROWS_READ = 4096  # read at once of each of two tables that are compared
FLOATS = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}


@dataclass(frozen=True)
class _Stored:
    """A tensor in a file; `slice_of(index)` returns a torch tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    slice_of: Callable[[tuple[slice, ...]], Any]


class CheckpointTensors:
    """The tensors of `checkpoint`; `require` compares the tensors that were requested with those in the files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._stored: dict[str, _Stored] = {}
        for file in checkpoint.weights:
            self._stored.update(_open_pickle(file) if checkpoint.pickled else _open_safetensors(file))
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, by name."""
        return {name: stored.shape for name, stored in self._stored.items()}

    @property
    def values(self) -> int:
        """The number of values of all tensors."""
        return sum(map(math.prod, self.shapes.values()))

    def prefix(self, prefix: str) -> str:
        """Return `prefix` if names begin with it; empty if the checkpoint was saved from the bare model."""
        return prefix if any(name.startswith(prefix) for name in self._stored) else ""

    def first(self, *names: str) -> str:
        """Return the first of a tied tensor's `names` that is stored; the other names may be stored too."""
        return next((name for name in names if name in self._stored), names[0])

    def require_floats(self, names: Iterable[str]) -> None:
        """Raise CheckpointCorrupt if one of `names`, with or without a prefix, holds no floating point numbers."""
        wanted = tuple(names)
        for name, stored in self._stored.items():
            if stored.dtype not in FLOATS and any(each.endswith(name) or name.endswith(each) for each in wanted):
                self._refuse_integers(name)

    def differ(self, name: str, *others: str) -> bool:
        """Return whether `name` is stored and differs in its values from the first of `others` that is stored."""
        other = next((each for each in others if each in self._stored), None)
        if name not in self._stored or other is None:
            return False
        one, two = self._stored[name], self._stored[other]
        if one.shape != two.shape:
            return True
        parts = ((slice(start, start + ROWS_READ),) for start in range(0, one.shape[0], ROWS_READ))
        return not all(np.array_equal(self._read(name, part), self._read(other, part)) for part in parts)

    def parameter(self, name: str, *shape: int) -> Parameter:
        """Return the tensor `name`, which must have this shape, as float32."""
        self._expect(name, shape)
        return Parameter(name, shape, lambda start, stop: self._read(name, (slice(start, stop),) if shape else ()))

    def indices(self, name: str, bound: int) -> NDArray[np.int64]:
        """Return the vector `name`, of whole numbers from 0 to below `bound`. Raises CheckpointCorrupt."""
        stored = self._stored[name]
        values: NDArray[Any] = stored.slice_of((slice(None),)).numpy()
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= bound:
            raise CheckpointCorrupt(f"{name} in {stored.file} holds other values than 0 to {bound - 1}.", AGAIN)
        return values.astype(np.int64)

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> Linear:
        """Return the linear `name`, whose weight and bias have torch's names."""
        weight = self.parameter(name + ".weight", outputs, inputs)
        return Linear(name, weight, self.parameter(name + ".bias", outputs) if bias else None)

    def transposed(self, name: str, *shape: int) -> Parameter:
        """Return the matrix `name` of `shape`, transposed: transformers' Conv1D has [inputs, outputs]."""
        self._expect(name, shape)
        whole = slice(None)
        return Parameter(name, shape[::-1], lambda start, stop: self._read(name, (whole, slice(start, stop))).T)

    def require(self) -> None:
        """Raise CheckpointCorrupt if a requested tensor is missing or misshapen."""
        findings = {MISSHAPEN: self._misshapen, MISSING: self._missing}
        fix = "Compare config.json and the weights with the original, or download the checkpoint again."
        self.refuse(findings, fix)

    def refuse(self, findings: Mapping[str, Iterable[str]], fix: str) -> None:
        """Raise CheckpointCorrupt with the first names of the first of the `findings` that has any."""
        for finding, names in findings.items():
            if names := sorted(names):
                if finding == MISSING:
                    self._refuse_wrapped(names)
                raise CheckpointCorrupt(f"{file_names(self._checkpoint)} {finding}: {first_names(names)}.", fix)

    def _refuse_wrapped(self, missing: Sequence[str]) -> None:
        """Raise CheckpointCorrupt if most of the `missing` tensors are stored behind the prefix of a wrapper."""
        for prefix in WRAPPERS:
            inner = {name.replace(prefix, "", 1) for name in self._stored if prefix in name}
            bare = {name.partition(".")[2] for name in inner}  # without the prefix of the base model
            found = [name for name in missing if name in inner | bare or name.partition(".")[2] in inner]
            if 2 * len(found) > len(missing):
                raise CheckpointCorrupt(
                    f"{file_names(self._checkpoint)} {MISSING}, because it was saved in a wrapper: {prefix!r} stands "
                    f"before the names of {first_names(found)}.",
                    f"Save the model inside the wrapper by its save_pretrained, or strip {prefix!r} from all names.",
                )

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._stored.get(name)
        if stored is None:
            self._missing.append(name)
        elif stored.shape != shape:
            self._misshapen.append(f"{_short(name)} ({list(stored.shape)}, not {list(shape)})")
        else:
            self._refuse_integers(name)

    def _refuse_integers(self, name: str) -> None:
        stored = self._stored[name]
        if stored.dtype not in FLOATS:
            raise CheckpointCorrupt(
                f"{name} in {stored.file} holds {stored.dtype}, no floating point numbers.",
                "Pass the float checkpoint; hfx quantizes by itself.",
            )

    def _read(self, name: str, index: tuple[slice, ...]) -> FloatArray:
        stored = self._stored[name]
        array: FloatArray = stored.slice_of(index).float().numpy()
        if not np.isfinite(array).all():
            raise CheckpointCorrupt(f"{name} in {stored.file} holds values that are not finite.", AGAIN)
        return array


def first_names(names: Sequence[str]) -> str:
    """Return the first of `names` for a message, and the number of the others."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(_short, names[:NAMES_SHOWN])) + more


def file_names(checkpoint: Checkpoint) -> str:
    """Return the weight files for a message."""
    first, *others = checkpoint.weights
    return f"{first} (with {len(others)} further files)" if others else str(first)


def _short(name: str) -> str:
    return name if len(name) <= 120 else name[:120] + "..."


def _open_safetensors(file: Path) -> Iterator[tuple[str, _Stored]]:
    from safetensors import SafetensorError, safe_open

    try:
        handle: Any = safe_open(os.fspath(file), framework="pt")
        for name in handle.keys():  # noqa: SIM118 (the handle is no mapping)
            entry = handle.get_slice(name)
            yield name, _Stored(file, tuple(entry.get_shape()), entry.get_dtype(), entry.__getitem__)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointCorrupt(f"{file} is truncated or damaged: {error}.", AGAIN) from error


def _open_pickle(file: Path) -> Iterator[tuple[str, _Stored]]:
    import torch

    tensors = unpickled(file)
    if not isinstance(tensors, dict) or not tensors:
        raise CheckpointCorrupt(f"{file} holds no tensors by name.", AGAIN)
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise CheckpointCorrupt(f"{_short(str(name))} in {file} is not a tensor with a name.", AGAIN)
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield name, _Stored(file, tuple(tensor.shape), dtype, tensor.detach().__getitem__)
