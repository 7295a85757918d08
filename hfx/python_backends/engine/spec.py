"""engine.json: what a generation model is made of, read and checked.

Owns the format of the file; knows nothing of sessions and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelDamaged

FILE_NAME = "engine.json"
FORMAT = 1

DECODER = "decoder"
ENCODER_DECODER = "encoder-decoder"
KV_TYPES = ("float32", "float16")
CROSS_TYPES = ("float32", "float16", "int8")

ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"
RUNTIMES = (ONNXRUNTIME, OPENVINO)
PAGED_TYPES = ("u8", "f16", "f32")


@dataclass(frozen=True)
class Files:
    """The ONNX files of a model. `decoder` maps a number of beams to its graph; without an encoder, 1 serves any."""

    encoder: Path | None
    decoder: Mapping[int, Path]
    log_softmax: Path
    top_k: Path


@dataclass(frozen=True)
class OpenVinoFacts:
    """The OpenVINO files of a model: one decoder for all numbers of beams, and the package's least version.

    K and V are kept as `kv_type`; activations are quantized in groups of `group` (0: not at all).
    """

    minimum: str
    encoder: Path | None
    decoder: Path
    kv_type: str
    group: int


@dataclass(frozen=True)
class EngineSpec:
    """What engine.json says.

    `max_length` and `max_source` are positions: of the decoder's self attention (prompt and output together), and of
    the encoder (0 without one). `beams` are the widths that have a decoder graph; empty: any width. `cross_type` is how
    K and V of sources are kept (empty without an encoder); in int8 they come with a scale for each channel of a source.
    All this, and `files`, is ONNX Runtime's; `runtime` is the one that serves on CPU, if it is there.
    """

    kind: str
    family: str
    precision: str
    vocab_size: int
    layers: int
    heads: int
    head_dim: int
    max_length: int
    max_source: int
    beams: tuple[int, ...]
    kv_type: str
    cross_type: str
    minimum_onnxruntime: str
    needs_vnni: bool
    files: Files
    runtime: str = ONNXRUNTIME
    openvino: OpenVinoFacts | None = None

    @property
    def has_encoder(self) -> bool:
        """Whether prompts go to an encoder; else they are the beginning of the decoder's own sequence."""
        return self.kind == ENCODER_DECODER


def read_spec(folder: Path) -> EngineSpec:
    """The model in `folder`. Raises ModelDamaged, naming the file and the field."""
    path = folder / FILE_NAME
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDamaged(f"{path} can't be read: {error}", "Export the model again") from None
    if not isinstance(facts, dict):
        raise ModelDamaged(f"{path} holds no JSON object", "Export the model again")
    return _Reader(path, facts).spec()


class _Reader:
    """Fields of one file, each checked as it is taken."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self._path = path
        self._facts = facts

    def spec(self) -> EngineSpec:
        if self._facts.get("format") != FORMAT:
            raise self._damaged("format", f"{FORMAT}: it was written by another version of hfx")
        kind = self._one_of("kind", (DECODER, ENCODER_DECODER))
        crosses = kind == ENCODER_DECODER
        beams = self._beams() if crosses else ()
        openvino = self._openvino(crosses)
        return EngineSpec(
            kind=kind,
            family=self._text("family"),
            precision=self._text("precision"),
            vocab_size=self._count("vocab_size"),
            layers=self._count("layers"),
            heads=self._count("heads"),
            head_dim=self._count("head_dim"),
            max_length=self._count("max_length"),
            max_source=self._count("max_source") if crosses else 0,
            beams=beams,
            kv_type=self._one_of("kv_type", KV_TYPES),
            cross_type=self._one_of("cross_type", CROSS_TYPES) if crosses else "",
            minimum_onnxruntime=self._text("minimum_onnxruntime"),
            needs_vnni=self._flag("needs_vnni"),
            files=self._files(crosses, beams or (1,)),
            runtime=self._runtime(openvino),
            openvino=openvino,
        )

    def _files(self, crosses: bool, widths: tuple[int, ...]) -> Files:
        files = self._facts.get("files")
        if not isinstance(files, dict) or not isinstance(files.get("decoder"), dict):
            raise self._damaged("files", "an object with decoder, log_softmax, top_k and, with an encoder, encoder")
        return Files(
            encoder=self._file("files.encoder", files.get("encoder")) if crosses else None,
            decoder={width: self._file(f"files.decoder.{width}", files["decoder"].get(str(width))) for width in widths},
            log_softmax=self._file("files.log_softmax", files.get("log_softmax")),
            top_k=self._file("files.top_k", files.get("top_k")),
        )

    def _runtime(self, openvino: OpenVinoFacts | None) -> str:
        if "runtime" not in self._facts:  # written before there was a choice
            return ONNXRUNTIME
        return self._one_of("runtime", RUNTIMES if openvino else (ONNXRUNTIME,))

    def _openvino(self, crosses: bool) -> OpenVinoFacts | None:
        facts = self._facts.get("openvino")
        if facts is None:
            return None
        if not isinstance(facts, dict):
            raise self._damaged("openvino", "null, or an object with minimum, decoder, encoder, kv_type and group")
        group = facts.get("group")
        if type(group) is not int or group < 0:
            raise self._damaged("openvino.group", "a whole number of at least 0")
        # K and V of sources are written by the engine itself, which packs no bytes.
        kv_types = PAGED_TYPES[1:] if crosses else PAGED_TYPES
        return OpenVinoFacts(
            minimum=self._text("openvino.minimum"),
            encoder=self._file("openvino.encoder", facts.get("encoder")) if crosses else None,
            decoder=self._file("openvino.decoder", facts.get("decoder")),
            kv_type=self._one_of("openvino.kv_type", kv_types),
            group=group,
        )

    def _file(self, field: str, name: object) -> Path:
        # A plain name only: a model's files lie beside its engine.json.
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise self._damaged(field, "the name of a file beside it")
        path = self._path.parent / name
        if not path.is_file():
            raise ModelDamaged(f"{path} is missing ({field} of {FILE_NAME})", "Export the model again")
        return path

    def _beams(self) -> tuple[int, ...]:
        beams = self._facts.get("beams")
        if not isinstance(beams, list) or not beams or any(type(one) is not int or one < 1 for one in beams):
            raise self._damaged("beams", "a list of numbers of beams")
        return tuple(sorted(set(beams)))

    def _text(self, field: str) -> str:
        value = self._value(field)
        if not isinstance(value, str) or not value:
            raise self._damaged(field, "a text")
        return value

    def _one_of(self, field: str, allowed: tuple[str, ...]) -> str:
        value = self._value(field)
        if value not in allowed:
            raise self._damaged(field, " or ".join(allowed))
        return str(value)

    def _count(self, field: str) -> int:
        value = self._facts.get(field)
        if type(value) is not int or value < 1:
            raise self._damaged(field, "a whole number of at least 1")
        return value

    def _flag(self, field: str) -> bool:
        value = self._facts.get(field)
        if not isinstance(value, bool):
            raise self._damaged(field, "true or false")
        return value

    def _damaged(self, field: str, allowed: str) -> ModelDamaged:
        return ModelDamaged(f"{self._path}: {field} is {self._value(field)!r}, not {allowed}", "Export the model again")

    def _value(self, field: str) -> Any:
        value: Any = self._facts
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value
