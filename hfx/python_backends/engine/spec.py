"""Read and check engine.json, which describes a generation model."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checks import Check, Fields, boolean, filled, integer, one_of, optional, read_json
from ..errors import InvalidRequest, ModelDamaged

FILE_NAME = "engine.json"
FORMAT = 1

DECODER = "decoder"
ENCODER_DECODER = "encoder-decoder"
KV_TYPES = ("float32", "float16")
CROSS_TYPES = ("float32", "float16", "int8")

ONNXRUNTIME = "onnxruntime"
NATIVE = "native"  # ONNX Runtime with the operators of hfx/native
RUNTIMES = (ONNXRUNTIME, NATIVE)
OPENVINO = "openvino"  # the runtime of models of earlier versions, which have ONNX files beside OpenVINO's


@dataclass(frozen=True)
class Files:
    """The ONNX files of a model.

    `decoder` maps a number of beams to a graph; without an encoder, the key 1 stands for any number. `choose` edits
    scores and finds the best on a GPU. Models for CPUs and models of earlier versions lack it.
    """

    encoder: Path | None
    decoder: Mapping[int, Path]
    log_softmax: Path
    top_k: Path
    choose: Path | None


@dataclass(frozen=True)
class OperatorLibrary:
    """The library of native operators that lies beside a model, its SHA-256, and the decoders for it.

    The decoders store K and V of their own tokens as `kv_type`. Models of earlier versions have one decoder for both
    runtimes.
    """

    path: Path
    sha256: str
    kv_type: str
    decoder: Mapping[int, Path]


@dataclass(frozen=True)
class EngineSpec:
    """The contents of engine.json.

    `max_length` is the number of positions of the decoder's self attention (prompt and output together), and
    `max_source` the encoder's (0 without an encoder). `beams` are the widths that have a decoder graph; it is empty if
    the model takes any width. `cross_type` is the type of K and V of sources (empty without an encoder); int8 values
    have a scale for each channel of a source. Each of the `kv_heads` heads of K and V serves the same number of the
    `heads` of Q. If engine.json lacks `kv_heads`, it equals `heads`.

    All of these fields, and `files`, describe the graphs for ONNX Runtime alone. `runtime` is the runtime that the
    model prefers on CPU. It is used if it is available, which OPENVINO never is.
    """

    kind: str
    vocab_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    max_source: int
    beams: tuple[int, ...]
    kv_type: str
    cross_type: str
    minimum_onnxruntime: str
    needs_vnni: bool
    files: Files
    runtime: str
    operators: OperatorLibrary | None = None

    @property
    def has_encoder(self) -> bool:
        """Whether prompts go to an encoder; else they are the beginning of the decoder's own sequence."""
        return self.kind == ENCODER_DECODER

    def on_operators(self, library: OperatorLibrary) -> EngineSpec:
        """Return this model with the decoders for native operators in place of ONNX Runtime's."""
        return replace(self, kv_type=library.kv_type, files=replace(self.files, decoder=library.decoder))


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, for comparison."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def read_spec(folder: Path) -> EngineSpec:
    """Read the engine.json in `folder`. Raises ModelDamaged, naming the file and the field."""
    return read_json(folder / FILE_NAME, FORMAT, lambda facts: _spec(folder, Fields(facts)))


def _spec(folder: Path, fields: Fields) -> EngineSpec:
    kind = fields.take("kind", one_of(DECODER, ENCODER_DECODER))
    crosses = kind == ENCODER_DECODER
    heads = fields.take("heads", integer(1))
    beams = fields.take("beams", _beams) if crosses else ()
    files = _files(folder, fields.inside("files"), crosses, beams or (1,))
    kv_type = fields.take("kv_type", one_of(*KV_TYPES))
    operators = None
    if fields.values.get("operators") is not None:
        operators = _operators(folder, fields.inside("operators"), files, kv_type)
    runtimes = (ONNXRUNTIME, OPENVINO, *([NATIVE] if operators else []))
    return EngineSpec(
        kind=kind,
        vocab_size=fields.take("vocab_size", integer(1)),
        layers=fields.take("layers", integer(1)),
        heads=heads,
        kv_heads=heads if "kv_heads" not in fields.values else fields.take("kv_heads", _kv_heads(heads, crosses)),
        head_dim=fields.take("head_dim", integer(1)),
        max_length=fields.take("max_length", integer(1)),
        max_source=fields.take("max_source", integer(1)) if crosses else 0,
        beams=beams,
        kv_type=kv_type,
        cross_type=fields.take("cross_type", one_of(*CROSS_TYPES)) if crosses else "",
        minimum_onnxruntime=fields.take("minimum_onnxruntime", filled),
        needs_vnni=fields.take("needs_vnni", boolean),
        files=files,
        runtime=fields.take("runtime", one_of(*runtimes)),
        operators=operators,
    )


def _files(folder: Path, fields: Fields, crosses: bool, widths: tuple[int, ...]) -> Files:
    file, decoders = _file_in(folder), fields.inside("decoder")
    return Files(
        encoder=fields.take("encoder", file) if crosses else None,
        decoder={width: decoders.take(str(width), file) for width in widths},
        log_softmax=fields.take("log_softmax", file),
        top_k=fields.take("top_k", file),
        choose=fields.take("choose", optional(file)),
    )


def _operators(folder: Path, fields: Fields, files: Files, kv_type: str) -> OperatorLibrary:
    file, decoder = _file_in(folder), files.decoder
    if fields.values.keys() & {"decoder", "kv_type"}:
        names = fields.inside("decoder")
        decoder = {width: names.take(str(width), file) for width in files.decoder}
        kv_type = fields.take("kv_type", one_of(*KV_TYPES))
    machine = platform.machine()  # an older file has the library for x86-64 alone
    own = fields.inside(machine) if machine in fields.values else fields
    return OperatorLibrary(own.take("file", file), own.take("sha256", filled), kv_type, decoder)


def _file_in(folder: Path) -> Check:
    def check(name: str, value: Any) -> Path:
        # A plain name only: a model's files lie beside its engine.json.
        if not isinstance(value, str) or not value or Path(value).name != value:
            raise InvalidRequest(name, value, "the name of a file beside it")
        if not (folder / value).is_file():
            raise ModelDamaged(f"{folder / value} is missing ({name} of {FILE_NAME})")
        return folder / value

    return check


def _kv_heads(heads: int, crosses: bool) -> Check:
    """Return the check of the number of heads of K and V for `heads` of Q. With an encoder, the numbers are equal."""

    def check(name: str, value: Any) -> int:
        integer(1)(name, value)
        if heads % value or (crosses and value != heads):
            raise InvalidRequest(name, value, str(heads) if crosses else f"a divisor of heads ({heads})")
        return int(value)

    return check


def _beams(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(type(one) is not int or one < 1 for one in value):
        raise InvalidRequest(name, value, "a list of numbers of beams")
    return tuple(sorted(set(value)))
