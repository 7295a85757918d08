"""The table of ways that are compared: hfx's and the peers', with what each needs before it can be opened.

How a way converts and runs stands in its own file (generation_ours.py, peers_generation/). Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import generation_ours, peers
from bench.cache import packages
from bench.generation_cases import Model
from bench.generation_models import Convert, converted, exporter_sources
from bench.peers_generation import ctranslate2_way, genai_way, intel_way, onnxruntime_way, torch_way
from bench.processes import Open, Resident


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
        return converted(name, model, self.precision, self.convert, self.fetch(), self.finish, self.sources())

    def open(self, model: Model) -> Resident:
        """The way in a process of its own. Raises FetchFailed and OpenFailed."""
        arguments = {"model": model, "folder": str(self.folder(model) or ""), "fetched": self.fetch()}
        return Resident(self.open_way, **arguments, precision=self.precision)


OURS, CTRANSLATE2, GENAI, INTEL = "hfx", "CTranslate2", "OpenVINO GenAI", "OpenVINO by optimum-intel"
ONNXRUNTIME, TORCH = "ONNX Runtime by optimum", "torch"


def _fetch_genai() -> str:
    return f"{peers.fetch_intel()}:{packages('genai', genai_way.PINS)}"


_ours = partial(Way, OURS, open_way=generation_ours.open_way, convert=generation_ours.convert, sources=exporter_sources)
OURS8, OURS4 = _ours("int8"), _ours("int4", most_rows=1)
OURS4_HEAD = replace(OURS4, name=f"{OURS}, head int4", convert=generation_ours.convert_fastest)
CT2 = Way(
    CTRANSLATE2,
    "int8",
    ctranslate2_way.open_way,
    ctranslate2_way.convert,
    lambda: str(packages("ctranslate2", ctranslate2_way.PINS)),
)
_genai = partial(
    Way,
    GENAI,
    open_way=genai_way.open_way,
    convert=genai_way.convert,
    fetch=_fetch_genai,
    sources=lambda: [Path(intel_way.__file__)],  # which does most of the conversion
)
GENAI8, GENAI4 = _genai("int8"), _genai("int4", most_rows=1)
GENAI4_HEAD = replace(GENAI4, name=f"{GENAI}, head int4", convert=genai_way.convert_all)
SEQ2SEQ_INTEL = Way(INTEL, "int8", intel_way.open_way, intel_way.convert, peers.fetch_intel)
_slow = partial(Way, slow=True, most_rows=32)
ORT = _slow(ONNXRUNTIME, "int8", onnxruntime_way.open_way, onnxruntime_way.convert, finish=onnxruntime_way.finish)
TORCH32, TORCH16 = (_slow(TORCH, precision, torch_way.open_way) for precision in ("fp32", "bf16"))
OURS_ALL = (OURS8, OURS4, OURS4_HEAD)
# By name of the model, in the order of their turns.
WAYS: dict[str, tuple[Way, ...]] = {
    "distilgpt2": (*OURS_ALL, CT2, GENAI8, GENAI4, GENAI4_HEAD, ORT, TORCH32, TORCH16),
    "flan-t5-base": (*OURS_ALL, CT2, SEQ2SEQ_INTEL, ORT, TORCH32, TORCH16),
    # Four documents take the slow ones most of a minute; a goal asks for torch's float32.
    "bart-large-cnn": (*OURS_ALL, CT2, SEQ2SEQ_INTEL, *(replace(way, most_rows=1) for way in (ORT, TORCH16)), TORCH32),
}
