"""The table of ways that are compared: hfx's and the peers', with what each needs before it can be opened.

How a way converts and runs stands in its own file (generation_ours.py, bench.peers). Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import generation_nets, generation_ours
from bench.generation_cases import Model
from bench.peers import ctranslate2, genai, openvino, optimum, torch
from bench.peers.conversions import Convert, converted, exporter_sources
from bench.peers.nets import OpenNet
from bench.peers.packages import SEPARATOR, TRANSFORMERS_4, Packages
from bench.peers.resident import Open, Resident


@dataclass(frozen=True, eq=False)
class Way:
    """A way in one precision.

    `fetch` gives the folder of its packages, `finish` ends a conversion, `sources` are files that it depends on.
    Ways of the same `files` run the same conversion; empty: it has its own. It takes part where there are at most
    `most_rows` requests at once; `slow` ways do so in the first round alone.
    """

    name: str
    precision: str
    open_way: Open
    convert: Convert | None = None
    fetch: Callable[[], str] = str
    finish: Callable[[Path], None] = lambda folder: None
    sources: Callable[[], list[Path]] = list
    files: str = ""
    most_rows: int = 1024
    slow: bool = False

    def folder(self, model: Model) -> Path | None:
        """The model as this way wants it, converted at the first call. Raises FetchFailed and OpenFailed."""
        if self.convert is None:
            return None
        name = (self.files or self.name).replace(",", "").replace(" ", "-").lower()
        stem = f"{name}-{self.precision}-{'tiny-' * model.tiny}{model.name}"
        return converted(stem, model, self.precision, self.convert, self.fetch(), self.finish, self.sources())

    @property
    def title(self) -> str:
        """Name and precision."""
        return f"{self.name} {self.precision}"

    def open(self, model: Model) -> Resident:
        """The way in a process of its own. Raises FetchFailed and OpenFailed."""
        arguments = {"model": model, "folder": str(self.folder(model) or ""), "fetched": self.fetch()}
        return Resident(self.open_way, **arguments, precision=self.precision)


OURS, CTRANSLATE2, GENAI, INTEL = "hfx", "CTranslate2", "OpenVINO GenAI", "OpenVINO by optimum-intel"
ONNXRUNTIME, TORCH = "ONNX Runtime by optimum", "torch"
ON = {"onnxruntime": f"{OURS} on ONNX Runtime", "openvino": f"{OURS} on OpenVINO"}
HEAD, BF16 = ", head int4", ", bf16"


def is_ours(name: str) -> bool:
    """Whether a way of this name is one of hfx's."""
    return name.startswith(OURS)


def _fetch(*needed: Packages) -> str:
    return SEPARATOR.join(str(each.fetch()) for each in needed)


def _ours(runtime: str, precision: str, convert: Convert = generation_ours.convert, head: str = "", **more: Any) -> Way:
    opener = partial(generation_ours.open_way, runtime=runtime)
    files = OURS + head  # one conversion holds the files of both runtimes
    return Way(ON[runtime] + head, precision, opener, convert, files=files, sources=exporter_sources, **more)


def _peer(name: str, precision: str, opener: OpenNet, **more: Any) -> Way:
    return Way(name, precision, partial(generation_nets.open_ids, opener), **more)


ORT8, OV8 = (_ours(runtime, "int8") for runtime in ON)
ORT4, OV4 = (_ours(runtime, "int4", most_rows=1) for runtime in ON)  # of many rows, the other form is faster
ORT4_HEAD, OV4_HEAD = (_ours(runtime, "int4", generation_ours.convert_fastest, HEAD) for runtime in ON)
CT2 = _peer(
    CTRANSLATE2,
    "int8",
    ctranslate2.open_net,
    convert=ctranslate2.convert,
    fetch=partial(_fetch, ctranslate2.PACKAGES, TRANSFORMERS_4),
)
# OpenVINO computes in bfloat16 by default, where the processor can: faster with many tokens at once, slower with few.
# The best of both is what others are held against.
F32 = "f32"
_genai = partial(
    _peer,
    convert=genai.convert,
    fetch=partial(_fetch, openvino.PACKAGES, genai.PACKAGES, TRANSFORMERS_4),
    sources=lambda: [Path(openvino.__file__)],  # which does most of the conversion
    files=GENAI,
)
GENAI8, GENAI4 = (_genai(GENAI, precision, partial(genai.open_net, hint=F32)) for precision in ("int8", "int4"))
GENAI8_BF16, GENAI4_BF16 = (_genai(GENAI + BF16, precision, genai.open_net) for precision in ("int8", "int4"))
GENAI4_HEAD = replace(GENAI4, name=GENAI + HEAD, files=GENAI + HEAD, convert=genai.convert_all)
_intel = partial(_peer, convert=openvino.convert, fetch=partial(_fetch, openvino.PACKAGES, TRANSFORMERS_4), files=INTEL)
INTEL8, INTEL4 = (_intel(INTEL, precision, partial(openvino.open_net, hint=F32)) for precision in ("int8", "int4"))
INTEL8_BF16, INTEL4_BF16 = (_intel(INTEL + BF16, precision, openvino.open_net) for precision in ("int8", "int4"))
_slow = partial(_peer, slow=True, most_rows=32)
ORT = _slow(
    ONNXRUNTIME,
    "int8",
    optimum.open_net,
    convert=optimum.convert,
    fetch=partial(_fetch, optimum.PACKAGES, TRANSFORMERS_4),
    finish=optimum.finish,
)
TORCH32, TORCH16 = (_slow(TORCH, precision, torch.open_net) for precision in ("fp32", "bf16"))
# By name of the model, in the order of their turns.
WAYS: dict[str, tuple[Way, ...]] = {
    "distilgpt2": (
        *(OV8, ORT8, GENAI8, GENAI8_BF16, CT2, ORT),
        *(OV4, OV4_HEAD, ORT4, ORT4_HEAD, GENAI4, GENAI4_BF16, GENAI4_HEAD),
        *(TORCH32, TORCH16),
    ),
    "flan-t5-base": (
        *(OV8, ORT8, INTEL8, INTEL8_BF16, CT2, ORT),
        *(OV4, OV4_HEAD, ORT4, ORT4_HEAD, INTEL4, INTEL4_BF16),
        *(TORCH32, TORCH16),
    ),
    # Nearly all of its time, optimum-intel encodes, which is faster in bfloat16; documents take the slow ones minutes.
    "bart-large-cnn": (
        *(OV8, ORT8, INTEL8_BF16, CT2, replace(ORT, most_rows=1)),
        *(OV4_HEAD, ORT4_HEAD, replace(INTEL4_BF16, slow=True)),
        *(replace(way, most_rows=1) for way in (TORCH32, TORCH16)),
    ),
}
