"""A graph in OpenVINO: reading, checking and compiling a file, and runs on memory shared with numpy.

OpenVINO reads no PagedAttention from a file, and its inputs change from version to version: so a file says
ScaledDotProductAttention on [1, tokens, width], named "self.LAYER" or "cross.LAYER", which is replaced at opening.
Here are the operator's 28 inputs (OpenVINO's paged_attention.hpp), of which thirteen are used, and the names of the
inputs that it adds to a model. Which sequence has which blocks is the runners'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelDamaged
from ..memory import Reserved
from ..runner import SessionSettings
from ..spec import EngineSpec
from . import core, import_openvino

DEVICE = "CPU"
UNKNOWN = -1
ATTENTION = "ScaledDotProductAttention"
SELF, CROSS = "self", "cross"
PREFIXES = {SELF: "", CROSS: "cross_"}
# Inputs with one number a sequence; one more of the "begins"; and as many as there are blocks.
VECTORS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
LONGEST = "max_context_len"
TOKENS = frozenset({"input_ids", "position_ids"})
LAST = "last"
CHOICES = frozenset({"next_ids", "logits"})
LOGITS, SCALE = "logits", "logit_scale"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Port:
    """An input or output of a compiled model; a size that is not fixed is UNKNOWN."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class OpenVinoModel:
    """A compiled graph: its `inputs` and `outputs` by name, and requests that run it."""

    def __init__(self, path: Path, spec: EngineSpec, settings: SessionSettings) -> None:
        """Read and compile `path`. Raises ModelDamaged."""
        self._tensor = import_openvino().Tensor
        try:
            core().get_versions(DEVICE)  # loads the plugin, with which the core knows its operators when it reads
            model = core().read_model(str(path))
            use_pages(model, spec.kv_heads, spec.head_dim)
            self._compiled = core().compile_model(model, DEVICE, properties(spec, settings))
        except (RuntimeError, ValueError) as error:
            raise ModelDamaged(f"openvino can't load {path}: {error}") from error
        self.inputs = {port.get_any_name(): _port(port) for port in self._compiled.inputs}
        self.outputs = {port.get_any_name(): _port(port) for port in self._compiled.outputs}
        shapes = ({name: port.shape for name, port in ports.items()} for ports in (self.inputs, self.outputs))
        check_model(path, spec, *shapes)

    def request(self) -> InferRequest:
        """A request of its own inputs and outputs; one runs at a time."""
        return InferRequest(self._compiled.create_infer_request(), self._tensor, self.inputs, self.outputs)


class InferRequest:
    """Inputs that stay bound from run to run, and outputs that are valid until the next."""

    def __init__(self, request: Any, tensor: Any, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        self._request = request
        self._tensor = tensor
        self._inputs = {name: at for at, name in enumerate(inputs)}
        self._outputs = {name: at for at, name in enumerate(outputs)}
        self._bound: dict[str, NDArray[Any]] = {}  # a tensor does not keep the memory that it shares

    def bind(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inputs whose memory, contiguous, is read and may be written in place by each run from now on."""
        for name, array in arrays.items():
            self._request.set_input_tensor(self._inputs[name], self._tensor(array, shared_memory=True))
            self._bound[name] = array

    def run(self) -> None:
        """One run, without the interpreter's lock. Raises what OpenVINO raises."""
        # infer() keeps a failure to itself where there is one thread, and leaves the outputs of the run before.
        self._request.start_async(None, share_inputs=True)
        self._request.wait()

    def gives(self, name: str) -> bool:
        """Whether there is such an output."""
        return name in self._outputs

    def output(self, name: str) -> NDArray[Any]:
        """A view."""
        array: NDArray[Any] = self._request.get_output_tensor(self._outputs[name]).data
        return array


def properties(spec: EngineSpec, settings: SessionSettings) -> dict[str, str]:
    """How graphs are compiled: for one run at a time, and exactly.

    bf16, which newer processors have, would turn off the int8 products that they have too. Threads are not pinned to
    cores: a pinned one waits for its core while another process has it.
    """
    assert spec.openvino is not None
    chosen = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": "NO",
        "KV_CACHE_PRECISION": spec.openvino.kv_type,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(spec.openvino.group),
    }
    return {**chosen, "INFERENCE_NUM_THREADS": str(settings.threads)} if settings.threads else chosen


def _port(port: Any) -> Port:
    shape = tuple(size.get_length() if size.is_static else UNKNOWN for size in port.get_partial_shape())
    return Port(shape, np.dtype(port.get_element_type().to_dtype()))


class LogitsReader:
    """For runs of at most `rows` rows, whose first `vocabulary` columns are tokens."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._scaled: NDArray[np.float32] = Reserved((rows, vocabulary), np.float32).array

    def read(self, request: InferRequest) -> NDArray[np.float32]:
        """[rows, vocabulary], valid until the next run or read."""
        logits: NDArray[np.float32] = request.output(LOGITS)[:, : self._vocabulary]
        if not request.gives(SCALE):
            return logits
        return np.multiply(logits, request.output(SCALE), out=self._scaled[: len(logits)])


def check_model(path: Path, spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> None:
    """Raise ModelDamaged unless inputs and outputs have the names and shapes of what `path` is in `spec`."""
    assert spec.openvino is not None
    wrong = _wrong_encoder(spec, inputs, outputs) if path == spec.openvino.encoder else _wrong(spec, inputs, outputs)
    if wrong:
        raise ModelDamaged(f"{path} is not the model that engine.json describes: {wrong}")


def _wrong(spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> str:
    pages = TOKENS | _pages(SELF, spec.layers)
    allowed: list[Collection[str]] = [pages | {LAST}]
    if spec.has_encoder:
        last = {f"cross_{part}_last.{layer}" for part in "kv" for layer in range(spec.layers)}
        rows = {f"past_{part}_{layer}" for part in "kv" for layer in range(spec.layers)}
        source = _pages(CROSS, spec.layers) | last
        allowed = [pages | source, TOKENS | rows | source]
    if set(inputs) not in allowed:
        return f"it has the inputs {', '.join(sorted(inputs))}"
    if not set(outputs) >= CHOICES:
        return f"it has the outputs {', '.join(sorted(outputs))}"
    columns = outputs["logits"][-1]
    return "" if columns >= spec.vocab_size else f"it has logits of {columns} tokens, not {spec.vocab_size}"


def _wrong_encoder(spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> str:
    if set(inputs) != {"input_ids", "lengths"} or set(outputs) != {f"cross_{layer}" for layer in range(spec.layers)}:
        return f"it has the inputs {', '.join(sorted(inputs))} and the outputs {', '.join(sorted(outputs))}"
    for name, (_, parts, heads, _, head_dim) in outputs.items():
        if (parts, heads, head_dim) != (2, spec.heads, spec.head_dim):
            return f"{name} has {parts} x {heads} heads of {head_dim}"
    return ""


def _pages(kind: str, layers: int) -> frozenset[str]:
    prefix = PREFIXES[kind]
    caches = {f"{prefix}{part}_cache.{layer}" for part in ("key", "value") for layer in range(layers)}
    return frozenset(caches | {prefix + name for name in (*VECTORS, LONGEST)})


def use_pages(model: Any, heads: int, head_dim: int) -> None:
    """Put PagedAttention with `heads` heads of K and V in the place of every named attention of an openvino.Model.

    Inputs are added: for each of PREFIXES that occurs the VECTORS [n] and LONGEST [] in int32, and for each layer
    key_cache.LAYER and value_cache.LAYER, whose shapes and types the compiled model says. Appended keys are those of
    the run's tokens; queries may have several heads for each of K and V. Raises ValueError where they have others.
    """
    inputs = _Inputs(model, heads, head_dim)
    for node in [node for node in model.get_ordered_ops() if node.get_type_name() == ATTENTION]:
        kind, _, layer = node.get_friendly_name().partition(".")
        if kind in PREFIXES:
            _check_width(node, heads, head_dim)
            paged = _paged(node, inputs, PREFIXES[kind], int(layer))
            _describe(paged, heads, head_dim)
            (squeezed,) = node.output(0).get_target_inputs()
            squeezed.get_node().output(0).replace(paged.output(0))
    inputs.add()


def _check_width(node: Any, heads: int, head_dim: int) -> None:
    width = node.input_value(1).get_partial_shape()[2]
    if not width.is_static or width.get_length() != heads * head_dim:
        raise ValueError(f"{node.get_friendly_name()} has keys of {width} numbers, not {heads} heads of {head_dim}")


class _Inputs:
    """The inputs that a model gets, each once."""

    def __init__(self, model: Any, heads: int, head_dim: int) -> None:
        self._model = model
        self._block = [-1, heads, -1, head_dim]
        self._made: dict[str, Any] = {}

    def vectors(self, prefix: str) -> list[Any]:
        return [self._get(prefix + name, "i32", [-1]) for name in VECTORS]

    def longest(self, prefix: str) -> Any:
        return self._get(prefix + LONGEST, "i32", [])

    def caches(self, prefix: str, layer: int) -> list[Any]:
        # The runtime replaces these types and shapes by those of its own layout.
        return [self._get(f"{prefix}{part}_cache.{layer}", "dynamic", self._block) for part in ("key", "value")]

    def add(self) -> None:
        self._model.add_parameters(list(self._made.values()))
        self._model.validate_nodes_and_infer_types()

    def _get(self, name: str, kind: str, shape: Sequence[int]) -> Any:
        from openvino import PartialShape, Type
        from openvino.op import Parameter

        if name not in self._made:
            node = Parameter(getattr(Type, kind), PartialShape(list(shape)))
            node.set_friendly_name(name)
            node.output(0).set_names({name})
            self._made[name] = node
        return self._made[name].output(0)


def _paged(node: Any, inputs: _Inputs, prefix: str, layer: int) -> Any:
    from openvino.op import _PagedAttentionExtension

    query, key, value = (node.input_value(at).get_node().input_value(0) for at in range(3))  # [tokens, width] each
    scale = node.input_value(4)
    unused = [
        _nothing(np.int32),  # windows of scores that are given out
        *(_nothing(np.int32), _nothing(np.int32), _nothing(np.float32)),  # rotated blocks
        *(_nothing(np.float32), _constant(0), _constant(0)),  # sparse attention
        _nothing(np.float32),  # sinks
        *(_constant(0), _nothing(np.int32), _nothing(np.int32), _nothing(np.int32)),  # evicted blocks
        *(_nothing(np.int32), _nothing(np.uint8), _nothing(np.int32)),  # types of tokens, trees of tokens
    ]
    given = [query, key, value, *inputs.caches(prefix, layer), *inputs.vectors(prefix), scale]
    window, slopes = _constant(0), _nothing(np.float32)
    return _PagedAttentionExtension([*given, window, slopes, inputs.longest(prefix), *unused])


def _describe(paged: Any, heads: int, head_dim: int) -> None:
    facts = {"k_head_size": head_dim, "num_k_heads": heads, "v_head_size": head_dim, "num_v_heads": heads}
    for name, number in facts.items():
        paged.get_rt_info()[name] = number


def _constant(value: int) -> Any:
    from openvino.op import Constant

    return Constant(np.array(value, np.int32)).output(0)


def _nothing(dtype: Any) -> Any:
    from openvino.op import Constant

    return Constant(np.zeros(0, dtype)).output(0)
