"""CTranslate2: its converted model, batches as they are given, and a load answered in static batches."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers import packages
from bench.peers.cases import Wanted
from bench.peers.decoding import model_class
from bench.peers.loads import Find, Line, Prompt, serve_batches
from bench.peers.model import Model

PACKAGES = packages.Packages("ctranslate2", ("ctranslate2==4.8.5",))
TYPES = {"int8": "int8", "fp32": "float32"}
# What BartLoader reads of configs of older transformers.
OLD_SWITCHES = {
    "normalize_before": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
    "add_final_layer_norm": False,
}
CONVERTERS = ("torch", "transformers", "huggingface_hub")  # it imports them only to convert

Ids = Sequence[int]


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The checkpoint with weights of `precision` and a vocabulary of numbers: tokens are ids on both sides."""
    packages.use(fetched)
    import torch
    import transformers

    loaders = importlib.import_module("ctranslate2.converters.transformers")
    net = getattr(transformers, model_class(model)).from_pretrained(model.files)
    for name, value in OLD_SWITCHES.items():
        if not hasattr(net.config, name):
            setattr(net.config, name, value)
    loader = loaders._MODEL_LOADERS.get(type(net.config).__name__)
    if loader is None:
        raise ValueError(f"CTranslate2 has no {type(net.config).__name__}")
    with torch.no_grad():
        spec = loader(net, _Numbers(net.config, model.vocabulary))
        spec.validate()
        spec.optimize(quantization=TYPES[precision])
        Path(folder).mkdir(exist_ok=True)
        spec.save(folder)


class _Numbers:
    """What the converter asks of a tokenizer."""

    def __init__(self, config: Any, size: int) -> None:
        end = config.eos_token_id if isinstance(config.eos_token_id, int) else 2
        chosen = {"eos_token": end, "bos_token": config.bos_token_id, "pad_token": config.pad_token_id}
        for name, number in chosen.items():
            setattr(self, name, str(end if number is None else number))
        self.unk_token = self.pad_token = str(end if config.pad_token_id is None else config.pad_token_id)
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self._size)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(number)


def open_net(model: Model, folder: str, fetched: str, precision: str, threads: int) -> Net:
    """The converted model on one worker with all threads."""
    return Net(model, folder, fetched, threads)


class Net:
    """Generator and Translator by the same call."""

    def __init__(self, model: Model, folder: str, fetched: str, threads: int) -> None:
        packages.use(fetched)
        with _without(CONVERTERS):
            ctranslate2 = importlib.import_module("ctranslate2")  # by name, as the environment has none to type
        kind = ctranslate2.Generator if model.start is None else ctranslate2.Translator
        self._net: Any = kind(folder, device="cpu", intra_threads=threads, inter_threads=1)
        self._decodes = model.start is None

    def generate(self, prompts: Sequence[Ids], wanted: Wanted, told: Callable[[Any], bool] | None = None) -> list[Ids]:
        """The new ids of each row: so many, as the end token is forbidden before."""
        tokens = [[str(one) for one in prompt] for prompt in prompts]
        options: dict[str, Any] = {"beam_size": wanted.beams, "no_repeat_ngram_size": wanted.ngram}
        if told is not None:
            options = {"beam_size": 1, "callback": told}
        if self._decodes:
            found = self._net.generate_batch(
                tokens, max_length=wanted.new, min_length=wanted.new, include_prompt_in_result=False, **options
            )
            return [each.sequences_ids[0] for each in found]
        found = self._net.translate_batch(
            tokens, max_decoding_length=wanted.new, min_decoding_length=wanted.new, max_input_length=0, **options
        )
        return [[int(token) for token in each.hypotheses[0]] for each in found]

    def serve(self, batch: Sequence[Prompt], told: Callable[[int, int], None]) -> None:
        """A static batch in which every row ends, and leaves, at its own length, and is done at once."""
        counts = [0] * len(batch)

        def step(found: Any) -> bool:
            row = found.batch_id
            counts[row] += 1  # not `found.step`: it counts from the end of the shortest prompt
            told(row, counts[row])
            return bool(counts[row] >= batch[row].new)

        self.generate([each.ids for each in batch], Wanted(max(each.new for each in batch)), step)
        if counts != [each.new for each in batch]:
            raise ValueError(f"{counts} tokens instead of {[each.new for each in batch]}")

    def attend(self, line: Line, find: Find, batch: int, unlike: float) -> None:
        """Serve requests as they come, in static batches."""
        serve_batches(line, find, self.serve, batch, unlike)


@contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
    """An import that can't import `names`."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
