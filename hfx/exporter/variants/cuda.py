"""Files for GPUs: fused operators, and a second graph with the same weights for rectangular batches, which C++ runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hfx import names
from hfx.exporter.encoder.gate import TOKENS_A_FORWARD, Gate, limits
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.variants.variant import Net, Source, Variant
from hfx.local import Device, Kind, Tensors, read_config
from hfx.local.encoder import LocalModel
from hfx.python_backends.onnxruntime.config import ROWS_FILE

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Fused(Variant):
    """The float32 file with fused operators. Without a GPU, the gate runs it on the CPU."""

    name: ClassVar[str] = "gpu-fp32"
    device: ClassVar[Device] = "gpu"
    precision: ClassVar[Precision] = "fp32"
    file: ClassVar[str] = "model.gpu.onnx"
    accuracy: ClassVar[str] = "fp32"
    is_timed: ClassVar[bool] = False
    providers: ClassVar[tuple[Kind, ...]] = ("GPU", "CPU")

    def write(self, source: Source) -> Net:
        """Write the fused graph and, if C++ may run the model, that of rectangular batches."""
        import onnx

        from hfx.exporter.encoder.graph.build import save, save_beside
        from hfx.exporter.encoder.graph.fusion import fuse, rows_file, rows_graph

        fused, path = fuse(source.graph), source.folder / self.file
        save(self.converted(fused.model), path)
        rows = source.one_hop() and rows_graph(onnx.load(path, load_external_data=False), source.takes_empty)
        if rows:
            save_beside(rows, rows_file(path))
        graph = {"fused_attentions": fused.attentions, "traced_attentions": fused.traced, "rows_file": bool(rows)}
        own = {ROWS_FILE: rows_file(path).name} if rows else {}
        return Net(self, path, own, {"gpu_graph": graph})

    def converted(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the fused float32 graph in the precision of the file."""
        return model

    def compare(self, net: Net, model: LocalModel, gate: Gate) -> dict[str, Any]:
        """Compare both graphs with the checkpoint, on the provider that runs `model`, and return the figures."""
        figures = super().compare(net, model, gate)
        if ROWS_FILE not in net.parameters:
            return figures
        path = net.path.with_name(net.parameters[ROWS_FILE])
        rows = RowsNet(model, read_config(path.parent.parent / "configs" / f"{self.device}.pbtxt"), path)
        # Batches are padded to different widths here, and kernels for GPUs depend on the width.
        allowed = replace(limits(self.accuracy, gate.max_drop, gate.labelled), batch_delta=None)
        passed = gate.passed(f"{path.name}, the graph of rectangular batches,", model, allowed, rows.run)
        return {**figures, "rows_file": passed.as_json()}


@dataclass(frozen=True)
class Half(Fused):
    """The same graph in float16."""

    name: ClassVar[str] = "gpu-fp16"
    precision: ClassVar[Precision] = "fp16"
    file: ClassVar[str] = "model.fp16.onnx"
    accuracy: ClassVar[str] = "fp16"

    def converted(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the graph in float16."""
        from hfx.exporter.quantize.encoder import half

        return half(model)


class RowsNet:
    """Runs the graph of rectangular batches on the encoded requests of an open model, one padded row for a sequence.

    Each batch ends with a row of padding, as those that fill a batch up to a size of which there are few.
    """

    def __init__(self, model: LocalModel, config: dict[str, Any], path: Path) -> None:
        from hfx.python_backends.onnxruntime.sessions import open_session

        settings = model.encoder.settings
        self._padding = {names.INPUT_IDS: settings.pad_id, names.TOKEN_TYPE_IDS: settings.pad_type_id}
        self._model, self._session = model, open_session(config, path, model.kind, 0)

    def run(self, encoded: Sequence[Tensors]) -> list[Tensors]:
        """Return the outputs for each request: [1, ...], or [1, sequences, ...] for requests of several sequences."""
        results: list[Tensors] = [{} for _ in encoded]
        for members in self._batches(encoded):
            for index, outputs in zip(members, self._batch([encoded[index] for index in members]), strict=True):
                results[index] = outputs
        return results

    def _batches(self, encoded: Sequence[Tensors]) -> Iterator[list[int]]:
        """Yield the indices of requests that are run together: similarly wide ones, and the narrowest one left.

        Padding to the widest request is thus compared, but most of a batch is no padding.
        """
        shapes = [request[names.ATTENTION_MASK].shape for request in encoded]
        left = deque(sorted(range(len(encoded)), key=lambda index: (shapes[index][-1], math.prod(shapes[index]))))
        while left:
            width, members, cells = shapes[left[-1]][-1], list[int](), 0
            while left and len(members) < self._model.max_batch_size:
                narrowest = len(members) == 1
                cells += width * math.prod(shapes[left[0 if narrowest else -1]][:-1])
                if members and cells > TOKENS_A_FORWARD:
                    break
                members.append(left.popleft() if narrowest else left.pop())
            yield members

    def _batch(self, encoded: Sequence[Tensors]) -> list[Tensors]:
        leads = [request[names.ATTENTION_MASK].shape[:-1] for request in encoded]
        counts = [int(np.prod(lead)) for lead in leads]
        width = max(request[names.ATTENTION_MASK].shape[-1] for request in encoded)
        feed = {}
        for name in (tensor.name for tensor in self._session.inputs):
            feed[name] = np.full((sum(counts) + 1, width), self._padding.get(name, 0), np.int32)
            rows = (row for request in encoded for row in request[name].reshape(-1, request[name].shape[-1]))
            for target, row in zip(feed[name], rows, strict=False):
                target[: len(row)] = row
        outputs = self._session.run(feed, self._model.layout.outputs)
        ends = np.cumsum(counts)[:-1]
        split = {name: np.split(value[: sum(counts)], ends) for name, value in outputs.items()}
        return [
            {name: parts[at].reshape(*lead, *parts[at].shape[1:]) for name, parts in split.items()}
            for at, lead in enumerate(leads)
        ]
