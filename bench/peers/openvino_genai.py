"""OpenVINO GenAI's ContinuousBatchingPipeline for decoders, fed with token ids: batches, and requests as they arrive.

Variants: "f32" as optimum_intel.py says, "head" with embedding and head in 4 bits too.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from bench.arrivals import Line
from bench.packages import Packages
from bench.peers import Batch, Ids, Model, optimum_intel

PACKAGES = (
    Packages("genai", ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")),
    *optimum_intel.PACKAGES,
)
CONVERTED_VARIANTS = ("head",)
# Gigabytes of K/V; tokens of a step: prompts of a whole batch at once, or parts of them beside decoding rows.
CACHE, BATCH_TOKENS, LOAD_TOKENS, MOST_ROWS = 2, 2048, 512, 256


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """optimum-intel's files, and the tokenizer that the pipeline wants though it gets token ids."""
    optimum_intel.convert(model, folder, precision, variant)
    import openvino as runtime
    from transformers import AutoTokenizer

    convert_tokenizer = importlib.import_module("openvino_tokenizers").convert_tokenizer
    pair = convert_tokenizer(AutoTokenizer.from_pretrained(model.folder), with_detokenizer=True)
    for name, graph in zip(("tokenizer", "detokenizer"), pair, strict=True):
        runtime.save_model(graph, f"{folder}/openvino_{name}.xml")


def open_net(model: Model, folder: str, precision: str, threads: int, variant: str) -> Net:
    """A pipeline for batches; one for loads is opened at the first of them."""
    return Net(folder, precision, threads, variant)


class Net:
    """The pipelines, by the tokens of a step and the properties of the rows."""

    def __init__(self, folder: str, *options: Any) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")
        self._folder, self._options = folder, options
        self._pipelines: dict[tuple[int, str], Any] = {}
        self._pipeline(BATCH_TOKENS, rows=1)

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row."""
        if (batch.beams, batch.ngram) != (1, 0):
            raise ValueError("continuous batching is measured with greedy answers alone")
        net = self._pipeline(BATCH_TOKENS, len(prompts))
        found = net.generate([_tensor(prompt) for prompt in prompts], [self._greedy(batch.new)] * len(prompts))
        return [each.m_generation_ids[0] for each in found]

    def serve(self, line: Line) -> None:
        """Requests as they arrive, each beside the others."""
        net, running, written = self._pipeline(LOAD_TOKENS, MOST_ROWS), dict[int, Any](), dict[int, int]()
        while running or line.waits:
            for number in line.take():
                request = line.requests[number]
                running[number] = net.add_request(number, _tensor(request.ids), self._greedy(request.new))
                written[number] = 0
            if not running:
                line.sleep()
                continue
            net.step()
            for number, handle in list(running.items()):
                while handle.can_read():
                    written[number] += sum(len(output.generated_ids) for output in handle.read().values())
                if handle.get_status() == self._genai.GenerationStatus.FINISHED:
                    line.end(number, written[number])
                    del running[number]

    def _pipeline(self, tokens: int, rows: int) -> Any:
        precision, threads, variant = self._options
        options = optimum_intel.properties(precision, threads, rows, variant)
        key = (tokens, options.get(optimum_intel.GROUP, ""))
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


def _tensor(prompt: Ids) -> Any:
    import numpy as np
    import openvino as runtime

    return runtime.Tensor(np.array([prompt], np.int64))
