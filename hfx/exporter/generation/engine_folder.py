"""An engine folder: a checkpoint's graphs, their weights, and engine.json, which says how to run them.

The engine reads engine.json as an `EngineSpec` (python_backends/engine/spec.py), and so does this module. The
checkpoint's family (exporter/families) describes the net as blocks; the graph writers are in exporter/graph.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from hfx import native
from hfx.errors import StorageFull
from hfx.exporter.families import find_family
from hfx.exporter.families.family import resolve_config
from hfx.exporter.generation.plan import BEAMS, GeneratorPlan
from hfx.exporter.graph.blocks import Attention, Net, Rotary
from hfx.exporter.graph.generator import GeneratorWriter, choose_graph, log_softmax_graph, top_k_graph
from hfx.exporter.graph.writer import WeightFile
from hfx.exporter.quantize.balance import Balances, balanced
from hfx.exporter.quantize.generator import ALL_LEVELS, Formats, KvType
from hfx.exporter.runtime import Runtime, weight_levels
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import CheckpointTensors
from hfx.local import Device
from hfx.python_backends.engine.sessions import trim_heap
from hfx.python_backends.engine.spec import FILE_NAME, FORMAT, EngineSpec, read_spec

WEIGHTS, ENCODER = "weights.bin", "encoder.onnx"
LOG_SOFTMAX, TOP_K, CHOOSE = "log_softmax.onnx", "top_k.onnx", "choose.onnx"
MINIMUM_ONNXRUNTIME = "1.31"  # the first version whose GroupQueryAttention has every option that the graphs use
_balances: WeakKeyDictionary[Checkpoint, Balances] = WeakKeyDictionary()
NATIVE_DECODER = "native_decoder"


def write(
    plan: GeneratorPlan, version: Path, device: Device, runtimes: tuple[Runtime, ...], formats: Formats | None = None
) -> None:
    """Write the engine folder of `device` in `formats`, and replace an existing folder.

    By default, `formats` are the first that the plan tries. The folder serves `runtimes`. Every
    folder has the files for ONNX Runtime, which serves the model on machines where native operators can't run.
    """
    folder, formats = version / device, formats or plan.formats(device)[0]
    shutil.rmtree(folder, ignore_errors=True)
    try:
        library = native.library() if "native" in runtimes else None
        write_engine_folder(plan.checkpoint, folder, formats, weight_levels(), plan.max_length, library)
    finally:
        release_memory()


def release_memory() -> None:
    """Return freed memory to the system, so that the memory of one step is not held during the next."""
    gc.collect()
    trim_heap()


def write_engine_folder(
    checkpoint: Checkpoint,
    folder: Path,
    formats: Formats,
    levels: int,
    max_length: int | None = None,
    library: Path | None = None,
) -> EngineSpec:
    """Write the engine folder of `checkpoint`, and return its engine.json as a spec.

    `levels` are those of int8 weights on the processors that will serve (`weight_levels` in exporter/runtime.py).
    `max_length` replaces the length that a net was trained with, if the net has no table of positions.
    `library` is the library of native operators. If it is given, it is copied into the folder with those for other
    processors beside it, decoders are written for it, and engine.json selects the native runtime.
    Raises CheckpointUnsupported and CheckpointCorrupt, naming fields and tensors, and StorageFull.
    """
    net = read_net(checkpoint, formats, levels, max_length)
    return write_net(net, folder, formats, levels, library)


def read_net(checkpoint: Checkpoint, formats: Formats, levels: int, max_length: int | None) -> Net:
    """Return the net of `checkpoint`, balanced for `formats`; `write_engine_folder` says more."""
    net = find_family(checkpoint).read(resolve_config(checkpoint), CheckpointTensors(checkpoint))
    if max_length is not None:
        net = _of_length(net, max_length)
    return balanced(net, formats, levels, _balances.setdefault(checkpoint, {}))


def write_net(net: Net, folder: Path, formats: Formats, levels: int, library: Path | None = None) -> EngineSpec:
    """Write the engine folder of `net`, as `write_engine_folder` does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with WeightFile(folder / WEIGHTS) as weights:
            writer = GeneratorWriter(net, formats, levels, weights)
            if net.encoder is not None:
                writer.encoder_graph(folder / ENCODER, net.encoder)
            decoders = native_decoders = _write_decoders(writer, folder, "decoder")
            kept = _kept_by_operators(net, formats)
            if library and kept != formats.kv:
                writer = replace(writer, formats=replace(formats, kv=kept))
                native_decoders = _write_decoders(writer, folder, NATIVE_DECODER)
        log_softmax_graph(folder / LOG_SOFTMAX, net.vocab_size)
        top_k_graph(folder / TOP_K)
        content = _engine_json(net, formats, levels, decoders)
        if content["files"]["choose"]:
            choose_graph(folder / CHOOSE, net.vocab_size)
        if library:
            operators = {**_copy_libraries(library, folder), "kv_type": kept, "decoder": native_decoders}
            content |= {"runtime": "native", "operators": operators}
        (folder / FILE_NAME).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageFull(
            f"{folder} can't be written: {error.strerror}.", "Free space, or choose another disk."
        ) from error
    return read_spec(folder)


def _copy_libraries(library: Path, folder: Path) -> dict[str, Any]:
    """Copy `library`, and those for other processors beside it; return their names and hashes for engine.json.

    Those for x86-64 are at the top, and the others under the names of their processors.
    """
    entries = {}
    for machine, path in native.libraries(library.parent).items():
        shutil.copyfile(path, folder / path.name)
        entries[machine] = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {**entries.pop("x86_64", {}), **entries}


def _of_length(net: Net, length: int) -> Net:
    """Return `net` for `length` tokens; a net with a table of positions is returned unchanged."""
    if net.decoder.positions is not None:
        return net
    layers = tuple(replace(layer, attention=_with_angles(layer.attention, length)) for layer in net.decoder.layers)
    decoder = replace(net.decoder, layers=layers)
    return replace(net, decoder=decoder, max_length=length)


def _with_angles(attention: Attention, length: int) -> Attention:
    """Return `attention` with rotary tables cut to `length` positions, if it has rotary positions."""
    rotary = attention.rotary
    if rotary is None:
        return attention
    return replace(attention, rotary=Rotary(rotary.cos.rows(0, length), rotary.sin.rows(0, length)))


def _write_decoders(writer: GeneratorWriter, folder: Path, stem: str) -> dict[str, str]:
    """Write the decoders to files whose names begin with `stem`, and return the names by number of beams."""
    if writer.net.encoder is None:
        names = {"1": f"{stem}.onnx"}
        writer.decoder_graph(folder / names["1"])
        return names
    names = {str(beams): f"{stem}.{beams}.onnx" for beams in BEAMS}
    for beams, name in names.items():
        writer.step_graph(folder / name, int(beams))
    return names


def _kept_by_operators(net: Net, formats: Formats) -> KvType:
    """Return the type of the decoder's own KV cache on native operators.

    float16 takes half the memory of float32, and a decode step reads half as much. ONNX Runtime's attention on the CPU
    reads float16 up to four times slower than float32, and a float16 cache makes the last bits of an answer depend on
    its batch. Therefore, each runtime has decoders of its own. Nets with a bias by distance (T5) keep the type of
    `formats`, which is float32, because they don't scale their scores.
    """
    return formats.kv if net.decoder.bias else "float16"


def _engine_json(net: Net, formats: Formats, levels: int, decoders: dict[str, str]) -> dict[str, Any]:
    """Return the content of engine.json for ONNX Runtime; `decoders` maps numbers of beams to file names."""
    attention = net.decoder.layers[0].attention
    has_encoder = net.encoder is not None
    return {
        "format": FORMAT,
        "family": net.family,
        "kind": net.kind,
        "precision": formats.precision,
        "vocab_size": net.vocab_size,
        "layers": len(net.decoder.layers),
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_length": net.max_length,
        "max_source": net.max_length if net.encoder else None,
        "beams": BEAMS if has_encoder else None,
        "kv_type": formats.kv,
        "cross_type": formats.cross if has_encoder else None,
        "minimum_onnxruntime": MINIMUM_ONNXRUNTIME,
        "needs_vnni": bool(formats.int8) and levels == ALL_LEVELS,
        "files": {
            "encoder": ENCODER if has_encoder else None,
            "decoder": decoders,
            "log_softmax": LOG_SOFTMAX,
            "top_k": TOP_K,
            "choose": CHOOSE if formats.precision == "fp16" else None,  # fp16 is for GPUs
        },
        "runtime": "onnxruntime",
        "operators": None,
    }
