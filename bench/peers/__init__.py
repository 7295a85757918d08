"""The peers: the same checkpoint in other libraries, each in a process of its own. A file here is a peer's adapter.

An adapter has `PACKAGES`, `open_net(model, folder, precision, threads)` and, where the library has files of its own,
`convert(model, folder, precision, variant)`. A net has `generate(prompts, batch)`: the new ids of each row; or it has
`labels(texts)` or `vectors(texts)`, and `net(texts)`, a function that runs the net alone. Only the peer's process
imports its library.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from bench.child import Child, Run
from bench.packages import Packages, converted, use

# Name in tables -> module of the adapter.
PEERS = {
    "torch": "bench.peers.transformers_api",
    "optimum": "bench.peers.optimum_onnx",
    "exporters": "bench.peers.transformers_onnx",
    "openvino": "bench.peers.optimum_intel",
    "genai": "bench.peers.openvino_genai",
    "ctranslate2": "bench.peers.ctranslate2_net",
    "llama.cpp": "bench.peers.llama_cpp",
    "hfx": "bench.peers.hfx_engine",
}
THREADS = os.cpu_count() or 1
Ids = Sequence[int]


@dataclass(frozen=True)
class Model:
    """A checkpoint's folder, and what a peer must know of it.

    `start` is the first token of an encoder-decoder's decoder; `longest` are the tokens that are read at most.
    """

    folder: str
    kind: Literal["decoder", "encoder-decoder", "classifier", "embedder"]
    start: int | None
    vocabulary: int
    longest: int

    @classmethod
    def of(cls, folder: Path) -> Model:
        """From the files of a checkpoint."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        longest = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["model_max_length"]
        pairs = config.get("is_encoder_decoder")
        name = config["architectures"][0]
        decoder, bare = name.endswith(("LMHeadModel", "ForCausalLM")), name.endswith("Model")
        kind: Any = "encoder-decoder" if pairs else "decoder" if decoder else "embedder" if bare else "classifier"
        return cls(
            str(folder), kind, config["decoder_start_token_id"] if pairs else None, config["vocab_size"], longest
        )

    @property
    def auto_class(self) -> str:
        """The end of optimum's class, `ORTModelFor…`."""
        names = {"decoder": "CausalLM", "encoder-decoder": "Seq2SeqLM", "classifier": "SequenceClassification",
                 "embedder": "FeatureExtraction"}  # fmt: skip
        return f"ModelFor{names[self.kind]}"

    @property
    def transformers_class(self) -> str:
        """transformers' class."""
        return "AutoModel" if self.kind == "embedder" else f"Auto{self.auto_class}"


@dataclass(frozen=True)
class Batch:
    """Rows that are answered together: `texts`, or token `ids` where no tokenizer is to be measured.

    A generator writes exactly `new` tokens for each, as the end token is forbidden before the last. A classifier
    (`new` 0) labels texts, and an embedder gives vectors; with `net_only` the tensors are made before the clock runs.
    """

    texts: tuple[str, ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    new: int = 0
    beams: int = 1
    ngram: int = 0
    net_only: bool = False


@dataclass(frozen=True)
class Answer:
    """Tokens read in all, tokens written by each row, and the texts, labels or vectors of the rows."""

    read: int = 0
    written: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    vectors: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Way:
    """A peer in one precision. `variant`: a word to the adapter (see there), such as a runtime or "head"."""

    peer: str
    precision: str
    variant: str = ""

    @property
    def label(self) -> str:
        """Its name in tables."""
        return " ".join(word for word in (self.peer, self.precision, self.variant) if word)

    def folder(self, model: Model) -> Path | None:
        """The checkpoint in the peer's own form, converted at the first call. Raises PeerFailed."""
        adapter = importlib.import_module(PEERS[self.peer])
        if not hasattr(adapter, "convert"):
            return None
        variant = self.variant if self.variant in getattr(adapter, "CONVERTED_VARIANTS", ()) else ""
        files = [Path(model.folder) / "config.json", Path(str(adapter.__file__)), *getattr(adapter, "SOURCES", ())]
        stem = f"{self.peer}-{self.precision}-{Path(model.folder).name}"
        return converted(stem, files, convert, peer=self.peer, model=model, precision=self.precision, variant=variant)

    def open(self, model: Model, threads: int = THREADS) -> Child:
        """In a process of its own, which answers a Batch with an Answer. Raises PeerFailed."""
        return Child(open_way, way=self, model=model, folder=str(self.folder(model) or ""), threads=threads)


def needed(peer: str) -> tuple[Packages, ...]:
    """The packages of a peer."""
    return tuple(importlib.import_module(PEERS[peer]).PACKAGES)


def convert(peer: str, model: Model, folder: str, precision: str, variant: str) -> None:
    """In a process of its own: the checkpoint in the peer's form."""
    use(needed(peer))
    importlib.import_module(PEERS[peer]).convert(model, folder, precision, variant)


def open_way(way: Way, model: Model, folder: str, threads: int) -> Callable[[Any], Run]:
    """In the peer's process: the net, and how it is run."""
    use(needed(way.peer))
    net = importlib.import_module(PEERS[way.peer]).open_net(model, folder, way.precision, threads, way.variant)
    if model.kind in ("classifier", "embedder"):
        return lambda batch: encoding(net, model, batch)
    tokenizer = Tokenizer(model)
    return lambda batch: generating(net, tokenizer, batch)


def encoding(net: Any, model: Model, batch: Batch) -> Run:
    """Texts to labels or vectors, or the net alone."""
    if batch.net_only:
        return cast("Run", net.net(batch.texts))
    if model.kind == "classifier":
        return lambda: Answer(texts=tuple(net.labels(batch.texts)))
    return lambda: Answer(vectors=tuple(tuple(row) for row in net.vectors(batch.texts).tolist()))


def generating(net: Any, tokenizer: Tokenizer, batch: Batch) -> Run:
    """Texts to texts, or ids to ids."""

    def run() -> Answer:
        prompts = batch.ids or tokenizer.encode(batch.texts, batch.new)
        rows = net.generate(prompts, batch)
        texts = tokenizer.decode(rows) if batch.texts else ()
        return Answer(sum(map(len, prompts)), tuple(map(len, rows)), texts)

    return run


class Tokenizer:
    """The checkpoint's own, which cuts a text to what the model can read."""

    def __init__(self, model: Model) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(model.folder)
        self._model = model
        self._tokenizer.truncation_side = "left" if model.kind == "decoder" else "right"

    def encode(self, texts: Sequence[str], new: int) -> list[list[int]]:
        """The prompt of each text; a decoder's leaves room for `new` tokens."""
        longest = self._model.longest - (new if self._model.kind == "decoder" else 0)
        found = self._tokenizer(list(texts), truncation=True, max_length=longest, verbose=False)["input_ids"]
        return [list(ids) for ids in found]

    def decode(self, rows: Sequence[Ids]) -> tuple[str, ...]:
        """The text of each row, without special tokens."""
        return tuple(self._tokenizer.batch_decode(rows, skip_special_tokens=True))
