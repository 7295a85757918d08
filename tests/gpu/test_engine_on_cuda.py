"""The engine on a real GPU: captured steps, prompts of many shapes at once, and beams that are ranked there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.local.generator import LocalGenerator
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.scores import DeviceScores
from tests import zoo
from tests.gpu.test_generators_on_cuda import assert_close, exported, in_torch
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.engine import graph_rows
from tests.rigs.machine.gpus import needs_cuda

pytestmark = [pytest.mark.slow, needs_cuda]

NEW = 24  # tokens of an answer
SHAPES = (
    (1,),
    (1, 1),
    (3, 70),
    (5, 31, 1, 12),
    tuple(range(1, 33)),
    (70,) * 16,
)  # lengths of prompts that come at once
BEAMS: dict[str, Any] = {"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "max_tokens": 32}


@pytest.mark.parametrize("name", tiny_generators.GENERATORS)
def test_nearly_all_steps_of_every_family_replay_a_captured_graph(tmp_path: Path, name: str) -> None:
    _, folder = exported(tmp_path, name)
    prompts = [tuple(row) for row in graph_rows.random_rows([3, 9, 20, 1])]
    with Engine.open(folder, provider="CUDA", slots=4, max_queue=64) as engine:
        start = (2,) if engine.spec.has_encoder else ()
        settings = Settings(max_tokens=NEW, decoder_prompt=start)
        for _ in range(4):
            for handle in [engine.submit(Request(prompt, settings)) for prompt in prompts]:
                handle.result()
        stats = engine.stats()
    assert stats.capture_refusal == ""
    assert stats.steps_captured >= 0.9 * stats.steps > 0
    assert stats.device_cache_bytes > 0
    assert sum(stats.prompt_runs.values()) >= 4


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_prompts_of_many_shapes_have_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model, folder = exported(tmp_path, name)
    for seed, lengths in enumerate(SHAPES):
        prompts = graph_rows.random_rows(lengths, seed)
        logits = graph_rows.Rows(folder, len(prompts), provider="CUDA").prefill(prompts)
        for got, prompt in zip(logits, prompts, strict=True):
            assert_close(got, in_torch(model, input_ids=prompt)[-1])


@pytest.mark.parametrize(
    ("checkpoint", "task"),
    [("stories-gpt2", None), ("summaries-bart", "summarization"), ("summaries-t5", "summarization")],
)
def test_beams_that_are_ranked_on_the_gpu_give_the_texts_of_beams_that_are_ranked_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str, task: str | None
) -> None:
    options = {"precision": "fp16", "device": "gpu", "cpu_runtime": "auto", "task": task, "name": "m"}
    export_checkpoint(zoo.checkpoint(checkpoint), tmp_path, **options)
    requests = [{"text_input": example.prompt, **BEAMS} for example in zoo.heldout("stories", 20)]
    with LocalGenerator.open(tmp_path, "m", "gpu") as generator:
        on_gpu = generator.infer_all(requests)
    monkeypatch.setattr(DeviceScores, "takes", staticmethod(lambda _: False))
    with LocalGenerator.open(tmp_path, "m", "gpu") as generator:
        on_host = generator.infer_all(requests)
    same = sum(one["text_output"] == other["text_output"] for one, other in zip(on_gpu, on_host, strict=True))
    assert same >= 19  # the same logits; ties of two beams may be broken differently
