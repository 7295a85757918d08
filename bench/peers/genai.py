"""OpenVINO GenAI's ContinuousBatchingPipeline, fed with token ids: batches at once, and a load as it arrives."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench.peers import openvino, packages
from bench.peers.cases import Wanted
from bench.peers.decoding import model_class
from bench.peers.loads import Find, Line
from bench.peers.model import Model

PACKAGES = packages.Packages("genai", ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0"))
# Gigabytes of K/V; tokens of one step: prompts of a whole batch at once, or parts of them beside decoding rows.
CACHE, BATCH_TOKENS, LOAD_TOKENS = 2, 2048, 512
MOST_ROWS = 256

Ids = Sequence[int]


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """optimum-intel's files, and the tokenizer that the pipeline wants though it gets token ids."""
    _convert(model, folder, fetched, openvino.BITS[precision])


def convert_all(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The same with embedding and head in `precision` too."""
    _convert(model, folder, fetched, {**openvino.BITS[precision], "all_layers": True})


def _convert(model: Model, folder: str, fetched: str, bits: Mapping[str, Any]) -> None:
    openvino.export(model_class(model, "OV"), model, folder, fetched, bits)
    import openvino as runtime
    from transformers import AutoTokenizer

    convert_tokenizer = importlib.import_module("openvino_tokenizers").convert_tokenizer
    pair = convert_tokenizer(AutoTokenizer.from_pretrained(model.files), with_detokenizer=True)
    for name, converted in zip(("tokenizer", "detokenizer"), pair, strict=True):
        runtime.save_model(converted, f"{folder}/openvino_{name}.xml")


def open_net(model: Model, folder: str, fetched: str, precision: str, threads: int, hint: str = "") -> Net:
    """A pipeline for batches, and one for loads at the first of them; `hint` as openvino.properties says."""
    packages.use(fetched)
    return Net(folder, partial(openvino.properties, precision, threads, hint=hint))


class Net:
    """The pipelines."""

    def __init__(self, folder: str, options: openvino.Options) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")  # by name, as the environment has none to type
        self._folder = folder
        self._options = options
        self._pipelines: dict[tuple[int, str], Any] = {}
        self._pipeline(BATCH_TOKENS, rows=1)  # opened before it is measured

    def generate(self, prompts: Sequence[Ids], wanted: Wanted) -> list[Ids]:
        """The new ids of each row."""
        if (wanted.beams, wanted.ngram) != (1, 0):
            raise ValueError("GenAI's continuous batching is measured with greedy answers alone")
        found = self._pipeline(BATCH_TOKENS, len(prompts)).generate(
            [_tensor(prompt) for prompt in prompts], [self._greedy(wanted.new)] * len(prompts)
        )
        return [each.m_generation_ids[0] for each in found]

    def attend(self, line: Line, find: Find, batch: int, unlike: float) -> None:
        """Serve requests as they come, each beside the others."""
        net = self._pipeline(LOAD_TOKENS, MOST_ROWS)
        running, answers = dict[int, Any](), dict[int, list[int]]()
        line.start()
        while running or line.next is not None:
            for number in line.take():
                prompt = find(number)
                running[number] = net.add_request(number, _tensor(prompt.ids), self._greedy(prompt.new))
                answers[number] = []
            if not running:
                line.wait()
                continue
            net.step()
            now = line.now
            for number, handle in list(running.items()):
                _read(handle, answers[number])
                if answers[number] and not line.times[number].first:
                    line.times[number].first = now
                if handle.get_status() == self._genai.GenerationStatus.FINISHED:
                    line.over(number, len(answers[number]), now)
                    del running[number]

    def _pipeline(self, tokens: int, rows: int) -> Any:
        options = self._options(rows)
        key = (tokens, options.get(openvino.GROUP, ""))
        if key not in self._pipelines:
            config = self._genai.SchedulerConfig()
            config.cache_size = CACHE
            config.max_num_batched_tokens = tokens
            config.max_num_seqs = MOST_ROWS
            config.enable_prefix_caching = False  # the same prompts come again and again
            self._pipelines[key] = self._genai.ContinuousBatchingPipeline(self._folder, config, "CPU", options)
        return self._pipelines[key]

    def _greedy(self, new: int) -> Any:
        return self._genai.GenerationConfig(max_new_tokens=new, ignore_eos=True)


def _read(handle: Any, answer: list[int]) -> None:
    """Add what a request has written since it was last looked at."""
    while handle.can_read():
        for output in handle.read().values():
            answer.extend(output.generated_ids)


def _tensor(prompt: Ids) -> Any:
    import numpy as np
    import openvino as runtime

    return runtime.Tensor(np.array([prompt], np.int64))
