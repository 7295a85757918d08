"""OpenVINO GenAI's ContinuousBatchingPipeline for decoders, fed with token ids.

Variants: "f32" as optimum_intel.py says, "head" with embedding and head in 4 bits too.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from bench.packages import Packages
from bench.peers import Batch, Ids, Model, optimum_intel

PACKAGES = (
    Packages("genai", ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")),
    *optimum_intel.PACKAGES,
)
CONVERTED_VARIANTS = ("head",)
CACHE, BATCH_TOKENS, MOST_ROWS = 2, 2048, 256  # gigabytes of K/V; tokens of a step: prompts of a whole batch at once


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
    """The converted model."""
    return Net(folder, precision, threads, variant)


class Net:
    """The pipelines, by the properties that so many rows want."""

    def __init__(self, folder: str, *options: Any) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")
        self._folder, self._options = folder, options
        self._pipelines: dict[str, Any] = {}
        self._pipeline(rows=1)

    def generate(self, prompts: Sequence[Ids], batch: Batch) -> list[Ids]:
        """The new ids of each row."""
        if (batch.beams, batch.ngram) != (1, 0):
            raise ValueError("continuous batching is measured with greedy answers alone")
        net = self._pipeline(len(prompts))
        found = net.generate([_tensor(prompt) for prompt in prompts], [self._greedy(batch.new)] * len(prompts))
        return [each.m_generation_ids[0] for each in found]

    def _pipeline(self, rows: int) -> Any:
        precision, threads, variant = self._options
        options = optimum_intel.properties(precision, threads, rows, variant)
        key = options.get(optimum_intel.GROUP, "")
        if key not in self._pipelines:
            config = self._genai.SchedulerConfig()
            config.cache_size = CACHE
            config.max_num_batched_tokens = BATCH_TOKENS
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
