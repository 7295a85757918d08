"""The table of ways that are compared: hfx's and the peers', with what each needs before it can be opened.

How a way converts and runs stands in its own file (generation_ours.py, hfx.perf.peers). Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import generation_nets, generation_ours
from bench.generation_cases import Model
from hfx.perf.peers import ctranslate2, genai, openvino, optimum, torch
from hfx.perf.peers.conversions import Convert, converted, exporter_sources
from hfx.perf.peers.nets import OpenNet
from hfx.perf.peers.packages import SEPARATOR, Packages
from hfx.perf.peers.resident import Open, Resident


@dataclass(frozen=True, eq=False)
class Way:
    """A way in one precision.

    `fetch` gives the folder of its packages, `finish` ends a conversion, `sources` are files that it depends on.
    It takes part where there are at most `most_rows` requests at once; `slow` ways do so in few rounds.
    """

    name: str
    precision: str
    open_way: Open
    convert: Convert | None = None
    fetch: Callable[[], str] = str
    finish: Callable[[Path], None] = lambda folder: None
    sources: Callable[[], list[Path]] = list
    most_rows: int = 1024
    slow: bool = False

    def folder(self, model: Model) -> Path | None:
        """The model as this way wants it, converted at the first call. Raises FetchFailed and OpenFailed."""
        if self.convert is None:
            return None
        name = self.name.replace(",", "").replace(" ", "-").lower()
        stem = f"{name}-{self.precision}-{'tiny-' * model.tiny}{model.name}"
        return converted(stem, model, self.precision, self.convert, self.fetch(), self.finish, self.sources())

    def open(self, model: Model) -> Resident:
        """The way in a process of its own. Raises FetchFailed and OpenFailed."""
        arguments = {"model": model, "folder": str(self.folder(model) or ""), "fetched": self.fetch()}
        return Resident(self.open_way, **arguments, precision=self.precision)


OURS, CTRANSLATE2, GENAI, INTEL = "hfx", "CTranslate2", "OpenVINO GenAI", "OpenVINO by optimum-intel"
ONNXRUNTIME, TORCH = "ONNX Runtime by optimum", "torch"


def _fetch(*needed: Packages) -> str:
    return SEPARATOR.join(str(each.fetch()) for each in needed)


def _peer(name: str, precision: str, opener: OpenNet, **more: Any) -> Way:
    return Way(name, precision, partial(generation_nets.open_ids, opener), **more)


_ours = partial(Way, OURS, open_way=generation_ours.open_way, convert=generation_ours.convert, sources=exporter_sources)
OURS8, OURS4 = _ours("int8"), _ours("int4", most_rows=1)
OURS4_HEAD = replace(OURS4, name=f"{OURS}, head int4", convert=generation_ours.convert_fastest)
CT2 = _peer(
    CTRANSLATE2,
    "int8",
    ctranslate2.open_net,
    convert=ctranslate2.convert,
    fetch=partial(_fetch, ctranslate2.PACKAGES),
)
_genai = partial(
    _peer,
    GENAI,
    opener=genai.open_net,
    convert=genai.convert,
    fetch=partial(_fetch, openvino.PACKAGES, genai.PACKAGES),
    sources=lambda: [Path(openvino.__file__)],  # which does most of the conversion
)
GENAI8, GENAI4 = _genai("int8"), _genai("int4", most_rows=1)
GENAI4_HEAD = replace(GENAI4, name=f"{GENAI}, head int4", convert=genai.convert_all)
SEQ2SEQ_INTEL = _peer(
    INTEL, "int8", openvino.open_net, convert=openvino.convert, fetch=partial(_fetch, openvino.PACKAGES)
)
_slow = partial(_peer, slow=True, most_rows=32)
ORT = _slow(ONNXRUNTIME, "int8", optimum.open_net, convert=optimum.convert, finish=optimum.finish)
TORCH32, TORCH16 = (_slow(TORCH, precision, torch.open_net) for precision in ("fp32", "bf16"))
OURS_ALL = (OURS8, OURS4, OURS4_HEAD)
# By name of the model, in the order of their turns.
WAYS: dict[str, tuple[Way, ...]] = {
    "distilgpt2": (*OURS_ALL, CT2, GENAI8, GENAI4, GENAI4_HEAD, ORT, TORCH32, TORCH16),
    "flan-t5-base": (*OURS_ALL, CT2, SEQ2SEQ_INTEL, ORT, TORCH32, TORCH16),
    # Four documents take the slow ones most of a minute; a goal asks for torch's float32.
    "bart-large-cnn": (*OURS_ALL, CT2, SEQ2SEQ_INTEL, *(replace(way, most_rows=1) for way in (ORT, TORCH16)), TORCH32),
}
