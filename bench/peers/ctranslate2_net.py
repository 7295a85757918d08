"""CTranslate2's converted generators."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.packages import TRANSFORMERS_4, Packages
from bench.peers import Batch, Ids, Model

PACKAGES = (Packages("ctranslate2", ("ctranslate2==4.8.5",)), TRANSFORMERS_4)
TYPES = {"int8": "int8", "fp32": "float32"}
# What BartLoader reads of configs of older transformers.
OLD_SWITCHES = {
    "normalize_before": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
    "add_final_layer_norm": False,
}
CONVERTERS = ("torch", "transformers", "huggingface_hub")  # imported only to convert


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """Weights of `precision` and a vocabulary of numbers, so that its tokens are ids."""
    import torch
    import transformers

    loaders = importlib.import_module("ctranslate2.converters.transformers")
    net = getattr(transformers, f"Auto{model.auto_class}").from_pretrained(model.folder)
    for name, value in OLD_SWITCHES.items():
        if not hasattr(net.config, name):
            setattr(net.config, name, value)
    with torch.no_grad():
        spec = loaders._MODEL_LOADERS[type(net.config).__name__](net, _Numbers(net.config, model.vocabulary))
        spec.validate()
        spec.optimize(quantization=TYPES[precision])
        spec.save(folder)


class _Numbers:
    """What the converter reads of a tokenizer, with ids as tokens."""

    def __init__(self, config: Any, size: int) -> None:
        end = config.eos_token_id if isinstance(config.eos_token_id, int) else 2
        ids = {"eos_token": end, "bos_token": config.bos_token_id, "pad_token": config.pad_token_id}
        for name, number in ids.items():
            setattr(self, name, str(end if number is None else number))
        self.unk_token = self.pad_token = str(end if config.pad_token_id is None else config.pad_token_id)
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self._size)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(number)


def open_net(model: Model, folder: str, precision: str, threads: int, variant: str) -> Net:
    """The converted model on one worker with all threads."""
    return Net(model, folder, threads)


class Net:
    """Generator and Translator by the same call."""

    def __init__(self, model: Model, folder: str, threads: int) -> None:
        with _without(CONVERTERS):
            ctranslate2 = importlib.import_module("ctranslate2")
        self._decodes = model.kind == "decoder"
        kind = ctranslate2.Generator if self._decodes else ctranslate2.Translator
        self._net: Any = kind(folder, device="cpu", intra_threads=threads, inter_threads=1)

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row."""
        tokens = [[str(one) for one in prompt] for prompt in prompts]
        options: dict[str, Any] = {"beam_size": batch.beams, "no_repeat_ngram_size": batch.ngram}
        if self._decodes:
            lengths = {"max_length": batch.new, "min_length": batch.new, "include_prompt_in_result": False}
            return [each.sequences_ids[0] for each in self._net.generate_batch(tokens, **lengths, **options)]
        lengths = {"max_decoding_length": batch.new, "min_decoding_length": batch.new, "max_input_length": 0}
        found = self._net.translate_batch(tokens, **lengths, **options)
        return [[int(token) for token in each.hypotheses[0]] for each in found]


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
