"""A variant: one way to write an encoder's net, and to run it on a device.

An export writes the nets of all variants that are offered for a device, keeps the fastest, and records its name.
Nothing else decides how a net is written, configured, opened and compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hfx.errors import UsageError
from hfx.exporter.encoder.gate import Gate, limits
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.options import CpuMath
from hfx.exporter.quantize.generator import ALL_LEVELS
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.local import Device, Kind
from hfx.local.encoder import LocalModel
from hfx.names import VARIANT
from hfx.repository.config_pbtxt import ModelConfig, TensorSpec

if TYPE_CHECKING:
    import onnx

    from hfx.exporter.quantize.encoder import Quantized


@dataclass(frozen=True)
class Source:
    """What the files of a net are made of.

    `graph` is the float32 graph of the torch `model`, with the token `inputs`. Files are written to `folder`, the
    version folder of NAME_net. The products `kept` stay float32 in quantized files. `one_hop` waits for the
    proof of the compiled tokenizer, and returns whether C++ may run the model. `takes_empty` says whether texts without
    tokens have answers.
    """

    graph: onnx.ModelProto
    model: Any
    inputs: tuple[str, ...]
    folder: Path
    kept: tuple[str, ...]
    one_hop: Callable[[], bool]
    takes_empty: bool

    @cached_property
    def floats(self) -> frozenset[str]:
        """The names of the weights of the products `kept`."""
        from hfx.exporter.quantize.encoder import row_source
        from hfx.exporter.quantize.products import weights_of

        return weights_of(row_source(self.graph), self.kept) if self.kept else frozenset()

    @cached_property
    def row_wise(self) -> tuple[Path, Quantized]:
        """The int8 file that ONNX Runtime reads, with and without native operators."""
        from hfx.exporter.encoder.graph.build import save
        from hfx.exporter.quantize.encoder import row_wise
        from hfx.exporter.runtime import weight_levels

        path, quantized = self.folder / "row_wise.onnx", row_wise(self.graph, weight_levels(), self.floats)
        save(quantized.model, path)
        return path, quantized


@dataclass(frozen=True)
class Net:
    """A written net: its ONNX file, the parameters of NAME_net that are its own, and what the manifest records.

    `choice` has the figures of the trial that chose it; None if it was not timed.
    """

    variant: Variant
    path: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    choice: CpuChoice | None = None

    @property
    def files(self) -> set[Path]:
        """The ONNX file, and the libraries of operators beside it, if it has them."""
        names = {self.path.name, *(value for value in self.parameters.values() if value.endswith(".so"))}
        return {self.path.with_name(name) for name in names}

    def configured(self, config: ModelConfig, threads: int) -> ModelConfig:
        """Return `config`, the configuration of NAME_net on any device, for this net."""
        own = {**self.variant.settings(threads), **self.parameters, VARIANT: self.variant.name}
        return replace(
            config,
            default_model_filename=self.path.name,
            instance_kind=f"KIND_{self.variant.device.upper()}",
            parameters={**config.parameters, **own},
        )

    def backend_config(self, threads: int) -> dict[str, Any]:
        """Return the part of a model configuration that opens the session, as the backend receives it from Triton."""
        parameters = {**self.variant.settings(threads), **self.parameters}
        return {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}


@dataclass(frozen=True)
class Variant(ABC):
    """One way to write and to run a net on `device`.

    `name` is recorded, and `file` is the name of the published file. A file in `precision` is computed in `math`, and
    held to the gate's limits of `accuracy`. `providers` run it, in the order in which they are tried.
    If a variant `is_timed`, the fastest of those offered is published. `fix` says what to do if `missing` has a reason.
    """

    name: ClassVar[str]
    device: ClassVar[Device] = "cpu"
    precision: ClassVar[Precision]
    math: ClassVar[CpuMath] = "fp32"
    runtime: ClassVar[Runtime] = "onnxruntime"
    file: ClassVar[str]
    accuracy: ClassVar[str]
    is_timed: ClassVar[bool] = True
    providers: ClassVar[tuple[Kind, ...]] = ("CPU",)
    fix: ClassVar[str] = "Use --cpu-runtime auto."

    def missing(self) -> str:
        """Return why this machine lacks what the variant needs; empty if it does not."""
        return ""

    @abstractmethod
    def write(self, source: Source) -> Net:
        """Write the file, and return the net."""

    @property
    def levels(self) -> int:
        """The levels of the weights of a quantized file (quantize/generator.py)."""
        return ALL_LEVELS

    def settings(self, threads: int) -> dict[str, str]:
        """Return the parameters of NAME_net that any net of this variant has."""
        return {}

    def outputs(self, outputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return the net's outputs, of which the model has `outputs`."""
        return outputs

    def measured(self, net: Net) -> dict[str, Any]:
        """Return what else the manifest records about the speed of the chosen net."""
        return {}

    def open(self, repository: Path, name: str) -> LocalModel:
        """Open the model NAME with this net on the first of `providers` that this machine has. Raises UsageError."""
        for provider in self.providers[:-1]:
            try:
                return LocalModel.open(repository, name, self.device, provider)
            except UsageError:
                continue
        return LocalModel.open(repository, name, self.device, self.providers[-1])

    def compare(self, net: Net, model: LocalModel, gate: Gate) -> dict[str, Any]:
        """Compare the opened net with the checkpoint, and return the figures.

        Raises VerificationFailed, with the figures, if it differs too much.
        """
        title = f"The {self.precision} file for {self.device.upper()}{' in bfloat16' if self.math != 'fp32' else ''}"
        allowed = limits(self.accuracy, gate.max_drop, gate.labelled)
        figures = gate.passed(title, model, allowed)
        return {"precision": self.precision, "kind": model.kind, **figures.as_json(), "limits": asdict(allowed)}
