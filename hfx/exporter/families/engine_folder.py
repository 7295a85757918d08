"""An engine folder: a checkpoint's graphs, their weights, and engine.json, which says how they are run.

Owns file names and the facts that the engine reads (python_backends/engine/spec.py). What a checkpoint is made of is a
family's, how it is written the graph writers'.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hfx.errors import StorageFull
from hfx.exporter.families.config import resolve_config
from hfx.exporter.families.family import Family
from hfx.exporter.graph.balance import balanced
from hfx.exporter.graph.blocks import Kind, Net
from hfx.exporter.graph.formats import CrossType, Formats, KvType, Precision
from hfx.exporter.graph.generator import GeneratorWriter
from hfx.exporter.graph.scores import log_softmax_graph, top_k_graph
from hfx.exporter.graph.weight_file import WeightFile
from hfx.exporter.runtime import Runtime
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import CheckpointTensors

FORMAT = 1
ENGINE_FILE = "engine.json"
WEIGHTS, ENCODER, LOG_SOFTMAX, TOP_K = "weights.bin", "encoder.onnx", "log_softmax.onnx", "top_k.onnx"
BEAMS = (1, 2, 3, 4, 5, 6, 8)
MINIMUM_ONNXRUNTIME = "1.31"  # the first with all that the graphs ask of GroupQueryAttention
ALL_LEVELS = 127
OPENVINO_DECODER, OPENVINO_ENCODER = "openvino_decoder.xml", "openvino_encoder.xml"
MINIMUM_OPENVINO = "2026.4"  # whose PagedAttention has the inputs that exporter/openvino/paging.py gives it


@dataclass(frozen=True)
class EngineFiles:
    """File names inside the folder; `decoder` by number of beams."""

    encoder: str | None
    decoder: dict[str, str]
    log_softmax: str
    top_k: str


@dataclass(frozen=True)
class OpenVinoFacts:
    """The models that OpenVINO runs, the type of K and V in pages (u8, f16, f32), and its own quantization group."""

    minimum: str
    decoder: str
    encoder: str | None
    kv_type: str
    group: int


@dataclass(frozen=True)
class EngineFacts:
    """The content of engine.json. `runtime` is the one that serves on CPU, `openvino` None where it has no models."""

    format: int
    family: str
    kind: Kind
    precision: Precision
    vocab_size: int
    layers: int
    heads: int
    head_dim: int
    max_length: int
    max_source: int | None
    beams: tuple[int, ...] | None
    kv_type: KvType
    cross_type: CrossType | None
    minimum_onnxruntime: str
    needs_vnni: bool
    files: EngineFiles
    runtime: Runtime = "onnxruntime"
    openvino: OpenVinoFacts | None = None


def write_folder(
    family: Family,
    checkpoint: Checkpoint,
    folder: Path,
    formats: Formats,
    levels: int,
    openvino: bool = False,
    max_length: int | None = None,
) -> EngineFacts:
    """Write the engine folder of `checkpoint`, which is of `family`, and return what engine.json says.

    `levels` is the largest int8 weight: 127, or 63 where u8 x s8 products saturate in pairs (exporter/runtime.py).
    With `openvino`, OpenVINO's models are written beside ONNX Runtime's, and are what serves. `max_length` takes the
    place of the lengths that an unbounded family was trained with.
    Raises CheckpointUnsupported and CheckpointCorrupt, naming fields and tensors, and StorageFull.
    """
    net = family.read(resolve_config(checkpoint), CheckpointTensors(checkpoint))
    if family.unbounded and max_length is not None:
        net = replace(net, max_length=max_length, max_source=max_length)
    net = balanced(net, formats, levels)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with WeightFile(folder / WEIGHTS) as weights:
            decoders = _write_graphs(GeneratorWriter(net, formats, levels, weights), folder)
        log_softmax_graph(folder / LOG_SOFTMAX, net.vocab_size)
        top_k_graph(folder / TOP_K)
        facts = _facts(
            net, formats, levels, EngineFiles(ENCODER if net.encoder else None, decoders, LOG_SOFTMAX, TOP_K)
        )
        if openvino:
            facts = replace(facts, runtime="openvino", openvino=_write_openvino(net, formats, levels, folder))
        _write_facts(folder, facts)
    except OSError as error:
        raise StorageFull(
            f"{folder} can't be written: {error.strerror}.", "Free space, or choose another disk."
        ) from error
    return facts


def without_openvino(folder: Path, facts: EngineFacts) -> EngineFacts:
    """Drop OpenVINO's models from an engine folder, and say in engine.json that ONNX Runtime serves it."""
    for name in (OPENVINO_DECODER, OPENVINO_ENCODER):
        for path in (folder / name, (folder / name).with_suffix(".bin")):
            path.unlink(missing_ok=True)
    facts = replace(facts, runtime="onnxruntime", openvino=None)
    _write_facts(folder, facts)
    return facts


def _write_facts(folder: Path, facts: EngineFacts) -> None:
    (folder / ENGINE_FILE).write_text(json.dumps(asdict(facts), indent=2) + "\n", encoding="utf-8")


def _write_openvino(net: Net, formats: Formats, levels: int, folder: Path) -> OpenVinoFacts:
    from hfx.exporter.openvino.formats import activations_for, dynamic_group
    from hfx.exporter.openvino.generator import GeneratorWriter as OpenVinoWriter

    writer = OpenVinoWriter(net, formats, levels, activations_for())
    if net.encoder is None:
        writer.decoder(folder / OPENVINO_DECODER)
    else:
        writer.encoder(folder / OPENVINO_ENCODER, net.encoder)
        writer.steps(folder / OPENVINO_DECODER)
    encoder = None if net.encoder is None else OPENVINO_ENCODER
    return OpenVinoFacts(MINIMUM_OPENVINO, OPENVINO_DECODER, encoder, writer.pages, dynamic_group(formats))


def _write_graphs(writer: GeneratorWriter, folder: Path) -> dict[str, str]:
    """Write encoder and decoders; the decoders' file names by number of beams."""
    if writer.net.encoder is None:
        writer.decoder_graph(folder / "decoder.onnx")
        return {"1": "decoder.onnx"}
    writer.encoder_graph(folder / ENCODER)
    names = {str(beams): f"decoder.{beams}.onnx" for beams in BEAMS}
    for beams, name in names.items():
        writer.step_graph(folder / name, int(beams))
    return names


def _facts(net: Net, formats: Formats, levels: int, files: EngineFiles) -> EngineFacts:
    attention = net.decoder.layers[0].attention
    int8 = "int8" in (formats.linear, formats.head, formats.embedding, formats.encoder)
    return EngineFacts(
        format=FORMAT,
        family=net.family,
        kind=net.kind,
        precision=formats.precision,
        vocab_size=net.vocab_size,
        layers=len(net.decoder.layers),
        heads=attention.heads,
        head_dim=attention.head_dim,
        max_length=net.max_length,
        max_source=net.max_source,
        beams=None if net.encoder is None else BEAMS,
        kv_type=formats.kv,
        cross_type=None if net.encoder is None else formats.cross,
        minimum_onnxruntime=MINIMUM_ONNXRUNTIME,
        needs_vnni=int8 and levels == ALL_LEVELS,
        files=files,
    )
