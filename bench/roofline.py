"""What this machine can do at most, and how near a served model comes to that. `python -m bench.roofline` prints it.

It also prints what one short text takes in int8, and what each setting of threads, pages and kernels is worth.

A step takes at least as long as to read its weights, or to multiply with them, whichever is longer (Williams, Waterman
and Patterson, "Roofline", 2009). Attention's products of activations are left out: they need no weights.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import Served
from bench.child import PeerFailed, apart, timed
from bench.exports import NAME
from hfx.names import NET_SUFFIX, STREAM_SUFFIX
from hfx.perf.cache import root
from hfx.perf.machine import machine

FILE = root() / "rates.jsonl"
SECONDS, BYTES_A_CORE, SIZE = 1.0, 256 << 20, 2048
PRODUCTS = frozenset(
    {"MatMul", "Gemm", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits"}
)
NATIVE_PRODUCTS = ("Int8Linear", "Int8Head", "FloatLinear", "Bfloat16Linear")  # and what follows them in one operator
LAST = "hfx.padding.last"  # read by products of all tokens, in graphs that have others of first tokens alone
# Operators whose result is their first input in another form, and those that gather single rows of a matrix.
PASSING = frozenset({"DequantizeLinear", "QuantizeLinear", "Transpose", "Cast", "Reshape", "Identity", "Unsqueeze"})
ROWS = frozenset({"Gather", "GatherBlockQuantized"})
# Bits of an element by TensorProto's data type; 32 for others.
BITS: Mapping[int, int] = {2: 8, 3: 8, 4: 16, 5: 16, 7: 64, 9: 8, 10: 16, 11: 64, 16: 16, 21: 4, 22: 4}
BITS_OF_INTEGERS = 8
TOKENS, TURNS = 16, 3
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "as it is served": {},
    "one thread": {"threads": 1},
    "threads sleep at once": {"spin": "0"},
    "threads spin for 200 us": {"spin": "200"},
    "weights in huge pages": {"huge": True},
    "whole panels": {"kernels": "avx512-vnni-panels"},
    "panels in chunks": {"kernels": "avx512-vnni"},
}


@dataclass(frozen=True)
class Rates:
    """Bytes read a second by all cores, and operations a second in matrix products (two for a multiply-add)."""

    read_bytes: float
    fp32_operations: float
    int8_operations: float


@dataclass(frozen=True)
class Weights:
    """Of one run of a graph: `bytes` read, `numbers` that each row is multiplied by, most of them `integers` or not."""

    bytes: float = 0.0
    numbers: float = 0.0
    integers: bool = False

    def seconds(self, rates: Rates, rows: float, runs: float = 1.0) -> tuple[float, float]:
        """Least seconds (reading, computing) of `rows` rows in `runs` runs."""
        operations = rates.int8_operations if self.integers else rates.fp32_operations
        return runs * self.bytes / rates.read_bytes, 2.0 * self.numbers * rows / operations


@cache
def rates() -> Rates:
    """This machine's, measured once in a process of its own."""
    found = machine()
    key = f"{found.processor}, {found.cores} cores"
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.is_file() else []
    known = {entry["key"]: entry["rates"] for entry in map(json.loads, lines)}
    if key not in known:
        known[key] = apart(measured, cores=found.cores)
        FILE.parent.mkdir(parents=True, exist_ok=True)
        with FILE.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "rates": known[key]}) + "\n")
    return Rates(**known[key])


def measured(cores: int) -> dict[str, float]:
    """The rates, each by the fastest of its turns: other work can only slow them down."""
    arrays = [np.ones(BYTES_A_CORE // 4, np.float32) for _ in range(cores)]
    matrix = np.ones((SIZE, SIZE), np.float32)
    with ThreadPoolExecutor(cores) as pool:
        reading = _fastest(lambda: list(pool.map(lambda array: np.dot(array, array), arrays)))
    floats = min(_fastest(lambda: matrix @ matrix), _fastest(_product(cores, integers=False)))
    operations = 2.0 * SIZE**3
    return {
        "read_bytes": cores * BYTES_A_CORE / reading,
        "fp32_operations": operations / floats,
        "int8_operations": operations / _fastest(_product(cores, integers=True)),
    }


def _fastest(step: Callable[[], object]) -> float:
    return min(timed(step, SECONDS).seconds)


def _product(cores: int, integers: bool) -> Callable[[], object]:
    """A product in ONNX Runtime, whose right side is a constant as weights are."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    left, out = (TensorProto.UINT8, TensorProto.INT32) if integers else (TensorProto.FLOAT, TensorProto.FLOAT)
    weights = numpy_helper.from_array(np.ones((SIZE, SIZE), np.int8 if integers else np.float32), "weights")
    ends = [helper.make_tensor_value_info(name, kind, [SIZE, SIZE]) for name, kind in (("left", left), ("out", out))]
    node = helper.make_node("MatMulInteger" if integers else "MatMul", ["left", "weights"], ["out"])
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {"left": np.ones((SIZE, SIZE), np.uint8 if integers else np.float32)}
    return lambda: session.run(None, values)


def weights_of(path: Path) -> Weights:
    """Of an ONNX graph: a matrix of which rows are gathered is read as a whole only if a product uses it too."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    read = {name for node in graph.node for name in (node.input[1:] if node.op_type in ROWS else node.input)}
    size = sum(math.prod(t.dims) * BITS.get(t.data_type, 32) / 8 for name, t in tensors.items() if name in read)
    numbers = integer = 0.0
    for node in graph.node:
        if node.op_type not in PRODUCTS and not node.op_type.startswith(NATIVE_PRODUCTS):
            continue
        if LAST in makers and LAST not in node.input:
            continue
        sources = (_source(name, tensors, makers) for name in node.input[:4])
        for tensor in [each for each in sources if each is not None and len(each.dims) >= 2][:1]:
            packed = {attribute.name: attribute.i for attribute in node.attribute if attribute.name in ("K", "N")}
            count = float(math.prod(packed.values() if packed else tensor.dims))
            numbers += count
            integer += count if BITS.get(tensor.data_type, 32) <= BITS_OF_INTEGERS else 0.0
    return Weights(size, numbers, integer > numbers / 2)


def _source(name: str, tensors: Mapping[str, Any], makers: Mapping[str, Any]) -> Any | None:
    """The tensor that `name` is in whatever form; None for what is computed of inputs."""
    while name not in tensors:
        maker = makers.get(name)
        if maker is None or maker.op_type not in PASSING:
            return None
        name = maker.input[0]
    return tensors[name]


def share_of_limit(
    repository: Path, name: str, rates: Rates, rows: float, per_second: float, read: float, written: float
) -> float | None:
    """`per_second` requests, each of `read` and `written` tokens, over the most that is possible with `rows` a step.

    None where the graphs are not ONNX files that can be found.
    """
    try:
        reader, writer = _graphs(repository, name)
    except (OSError, StopIteration, KeyError):
        return None
    parts = [writer.seconds(rates, written, written / rows)] if written else []
    # A net shares a run among the rows of its batch; a prompt or source is read in a run of its own.
    parts.append(reader.seconds(rates, read, 1.0 if written else 1.0 / rows))
    return per_second * max(map(sum, zip(*parts, strict=True)))


@cache
def _graphs(repository: Path, name: str) -> tuple[Weights, Weights]:
    """(what reads, what writes): a decoder-only model's are the same, a net writes nothing."""
    engine = repository / (name + STREAM_SUFFIX) / "1" / "cpu"
    if not engine.is_dir():
        net = next((repository / (name + NET_SUFFIX) / "1").glob("*.onnx"))
        return weights_of(net), Weights()
    files = json.loads((engine / "engine.json").read_text(encoding="utf-8"))["files"]
    decoder = weights_of(engine / files["decoder"][min(files["decoder"], key=int)])
    return (weights_of(engine / files["encoder"]) if files["encoder"] else decoder), decoder


def one_text(repository: str, threads: int = 0, spin: str = "", kernels: str = "", huge: bool = False) -> float:
    """Return the median of the milliseconds of a net with one text of TOKENS tokens, in a process of its own."""
    import onnxruntime

    from hfx.local import device_config
    from hfx.python_backends.onnxruntime.config import SPIN_DURATION, model_file, session_options
    from hfx.python_backends.onnxruntime.sessions import operator_library

    if kernels:
        os.environ["HFX_NATIVE_KERNELS"] = kernels
    folder = Path(repository) / (NAME + NET_SUFFIX)
    config = device_config(folder, "cpu")
    options, library = session_options(config, onnxruntime), operator_library(config, folder / "1")
    options.intra_op_num_threads = threads or options.intra_op_num_threads
    if spin:
        options.add_session_config_entry(SPIN_DURATION, spin)
    options.register_custom_ops_library(str(library))
    ctypes.CDLL(str(library)).hfx_huge_pages(int(huge))
    session = onnxruntime.InferenceSession(str(model_file(config, folder / "1")), options)
    ids = np.arange(1000, 1000 + TOKENS, dtype=np.int32)
    shape = np.array([[1, TOKENS]], np.int32)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "item_shape": shape}
    return 1e3 * statistics.median(timed(lambda: session.run(None, feed), SECONDS).seconds)


def settings_of_one_text(repository: Path) -> str:
    """Return a table: one text's least time by the rates, and its time with each setting, in TURNS rounds."""
    reading, computing = (1e3 * seconds for seconds in _graphs(repository, NAME)[0].seconds(rates(), TOKENS))
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(TURNS):
        for name, each in SETTINGS.items():
            with suppress(PeerFailed):  # kernels that this processor can't run
                found[name].append(apart(one_text, repository=str(repository), **each))
    rows = [("least, to read the weights", reading, ""), ("least, to multiply", computing, "")]
    rows += [(name, statistics.median(ms), " ".join(f"{each:.2f}" for each in ms)) for name, ms in found.items() if ms]
    return "\n".join(f"{name:28} {ms:6.2f} ms  {rounds}" for name, ms, rounds in rows)


if __name__ == "__main__":
    for rate, value in asdict(rates()).items():
        print(f"{rate:16} {value / 1e9:8.1f} G/s")
    print(settings_of_one_text(Served("distilbert-base").repository("int8", tiny=False)))
