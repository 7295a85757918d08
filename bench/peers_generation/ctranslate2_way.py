"""CTranslate2: its converted model, batches as they are given, and a load answered in static batches."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.arrivals import Serve, serve_batches
from bench.generation_cases import THREADS, Arrival, Batch, Load, Model
from bench.peers_generation import packages
from bench.peers_generation.generate import model_class
from bench.processes import Prepare, Run

PINS = ("ctranslate2==4.8.5",)
LOADERS = {"gpt2": "GPT2Loader", "t5": "T5Loader", "bart": "BartLoader"}
# What BartLoader reads of configs of older transformers.
OLD_SWITCHES = {
    "normalize_before": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
    "add_final_layer_norm": False,
}


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The checkpoint with weights of `precision` and a vocabulary of numbers, as nothing here is text."""
    packages.use(fetched)
    import torch
    import transformers

    loaders = importlib.import_module("ctranslate2.converters.transformers")
    net = getattr(transformers, model_class(model)).from_pretrained(model.checkpoint)
    for name, value in OLD_SWITCHES.items():
        if not hasattr(net.config, name):
            setattr(net.config, name, value)
    with torch.no_grad():
        spec = getattr(loaders, LOADERS[model.family])()(net, _Numbers(model.vocabulary))
        spec.validate()
        spec.optimize(quantization=precision)
        Path(folder).mkdir(exist_ok=True)
        spec.save(folder)


class _Numbers:
    """What the converter asks of a tokenizer."""

    bos_token, pad_token, eos_token, unk_token = "0", "1", "2", "3"

    def __init__(self, size: int) -> None:
        self._size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self._size)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(number)


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """The converted model on one worker with all threads."""
    generate = Net(model, folder, fetched)

    def prepare(case: Batch | Load) -> Run:
        if isinstance(case, Load):
            return lambda: serve_batches(case, generate.serve)
        prompts = case.prompts()
        return lambda: generate(prompts, case.new, beam_size=case.beams, no_repeat_ngram_size=case.ngram)

    return prepare


class Net:
    """Generator and Translator by the same call."""

    def __init__(self, model: Model, folder: str, fetched: str) -> None:
        packages.use(fetched)
        for converter in ("torch", "transformers", "huggingface_hub"):  # it imports them only to convert
            sys.modules.setdefault(converter, None)  # type: ignore[arg-type]
        ctranslate2 = importlib.import_module("ctranslate2")  # by name, as the environment has none to type
        kind = ctranslate2.Generator if model.start is None else ctranslate2.Translator
        self._net: Any = kind(folder, device="cpu", intra_threads=THREADS, inter_threads=1)
        self._decodes = model.start is None

    def __call__(self, prompts: Sequence[Sequence[int]], new: int, **options: Any) -> tuple[int, ...]:
        """The number of new tokens of each row: `new`, as the end token is forbidden before."""
        tokens = [[str(one) for one in prompt] for prompt in prompts]
        if self._decodes:
            found = self._net.generate_batch(
                tokens, max_length=new, min_length=new, include_prompt_in_result=False, **options
            )
            return tuple(len(each.sequences_ids[0]) for each in found)
        found = self._net.translate_batch(
            tokens, max_decoding_length=new, min_decoding_length=new, max_input_length=0, **options
        )
        return tuple(len(each.hypotheses[0]) for each in found)

    @property
    def serve(self) -> Serve:
        """A static batch in which every row ends, and leaves, at its own length, and is done at once."""

        def run(batch: Sequence[Arrival], done: Callable[[int, float], None]) -> None:
            told_of = [0] * len(batch)

            def told(step: Any) -> bool:
                row = step.batch_id
                told_of[row] += 1  # not `step.step`: it counts from the end of the shortest prompt
                if told_of[row] == batch[row].new:
                    done(row, time.perf_counter())
                return bool(told_of[row] >= batch[row].new)

            longest = max(each.new for each in batch)
            self([each.prompt for each in batch], longest, beam_size=1, callback=told)
            if told_of != [each.new for each in batch]:
                raise ValueError(f"{told_of} tokens instead of {[each.new for each in batch]}")

        return run
