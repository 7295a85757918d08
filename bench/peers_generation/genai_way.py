"""OpenVINO GenAI's ContinuousBatchingPipeline, fed with token ids: batches at once, and a load as it arrives."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.arrivals import Served, waits_until
from bench.generation_cases import Batch, Load, Model
from bench.peers_generation import intel_way, packages
from bench.processes import Prepare, Run

PINS = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")
# Gigabytes of K/V; tokens of one step: prompts of a whole batch at once, or parts of them beside decoding rows.
CACHE, BATCH_TOKENS, LOAD_TOKENS = 2, 2048, 512


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """optimum-intel's files, and the tokenizer that the pipeline wants though it gets token ids."""
    _convert(model, folder, fetched, intel_way.BITS[precision])


def convert_all(model: Model, folder: str, fetched: str, precision: str) -> None:
    """The same with embedding and head in `precision` too."""
    _convert(model, folder, fetched, {**intel_way.BITS[precision], "all_layers": True})


def _convert(model: Model, folder: str, fetched: str, bits: Mapping[str, Any]) -> None:
    intel, genai = fetched.split(":")
    intel_way.export(model, folder, intel, bits)
    packages.use(genai)
    import openvino
    from transformers import AutoTokenizer

    convert_tokenizer = importlib.import_module("openvino_tokenizers").convert_tokenizer
    pair = convert_tokenizer(AutoTokenizer.from_pretrained(model.checkpoint), with_detokenizer=True)
    for name, converted in zip(("tokenizer", "detokenizer"), pair, strict=True):
        openvino.save_model(converted, f"{folder}/openvino_{name}.xml")


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """A pipeline for batches, and one for loads at the first of them."""
    packages.use(fetched.split(":")[1])
    openvino_genai = _package()
    pipelines: dict[int, Any] = {}

    def pipeline(tokens: int) -> Any:
        if tokens not in pipelines:
            config = openvino_genai.SchedulerConfig()
            config.cache_size = CACHE
            config.max_num_batched_tokens = tokens
            config.max_num_seqs = 256
            config.enable_prefix_caching = False  # the same prompts come again and again
            properties = intel_way.properties(precision)
            pipelines[tokens] = openvino_genai.ContinuousBatchingPipeline(folder, config, "CPU", properties)
        return pipelines[tokens]

    def prepare(case: Batch | Load) -> Run:
        if isinstance(case, Load):
            return lambda: _serve(pipeline(LOAD_TOKENS), case)
        prompts, config = [_tensor(prompt) for prompt in case.prompts()], _greedy(case.new)
        net = pipeline(BATCH_TOKENS)

        def run() -> tuple[int, ...]:
            found = net.generate(prompts, [config] * len(prompts))
            return tuple(len(each.m_generation_ids[0]) for each in found)

        return run

    return prepare


def _serve(net: Any, load: Load) -> Served:
    waiting = list(enumerate(load.arrivals()))
    running: dict[int, Any] = {}
    begin, ends = time.perf_counter(), dict[int, float]()
    while waiting or running:
        now = time.perf_counter() - begin
        while waiting and waiting[0][1].at <= now:
            number, arrival = waiting.pop(0)
            running[number] = net.add_request(number, _tensor(arrival.prompt), _greedy(arrival.new))
        if not running:
            waits_until(begin + waiting[0][1].at)
            continue
        net.step()
        now = time.perf_counter() - begin
        for number in [number for number, handle in running.items() if _is_over(handle)]:
            running.pop(number)
            ends[number] = now
    return Served.of(load, [ends[number] for number in sorted(ends)])


def _is_over(handle: Any) -> bool:
    return bool(handle.get_status() == _package().GenerationStatus.FINISHED)


def _greedy(new: int) -> Any:
    return _package().GenerationConfig(max_new_tokens=new, ignore_eos=True)


def _package() -> Any:
    return importlib.import_module("openvino_genai")  # by name, as the environment has none to type


def _tensor(prompt: Sequence[int]) -> Any:
    import numpy as np
    import openvino

    return openvino.Tensor(np.array([prompt], np.int64))
