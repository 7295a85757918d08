"""The engine's fp16 files on ONNX Runtime's CUDA provider, compared with transformers in float32."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.local.generator import LocalGenerator
from hfx.python_backends.engine import captures
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.errors import ModelRefused
from tests import zoo
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.engine import graph_rows
from tests.rigs.machine.gpus import needs_cuda

pytestmark = [pytest.mark.slow, needs_cuda]

LENGTHS = (5, 31, 1, 12)  # of prompts and sources, in one ragged batch
STEPS = 12
# Of the largest logit. Steps of float16 are 2^-11 of a number, and a net adds up the errors of its layers.
TOLERANCE = 2e-2
ENCODER_DECODERS = [name for name in tiny_generators.GENERATORS if name not in tiny_generators.DECODERS]


def exported(folder: Path, name: str) -> tuple[Any, Path]:
    """Return transformers' random model `name`, and its engine folder for GPUs."""
    model = tiny_generators.build(name)
    write_engine_folder(tiny_generators.save(folder, model), folder / "engine", FORMATS["fp16"], 127)
    return model, folder / "engine"


def in_torch(model: Any, **ids: list[int]) -> NDArray[Any]:
    """Return transformers' logits [tokens, vocabulary] of one row."""
    import torch

    with torch.no_grad():
        logits: NDArray[Any] = model(**{name: torch.tensor([row]) for name, row in ids.items()}).logits[0].numpy()
    return logits


def assert_close(got: NDArray[Any], want: NDArray[Any]) -> None:
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


@pytest.mark.parametrize("name", tiny_generators.DECODERS)
def test_a_decoder_has_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model, folder = exported(tmp_path, name)
    prompts, answers = graph_rows.random_rows(LENGTHS), graph_rows.random_rows([STEPS] * len(LENGTHS), seed=1)
    logits = graph_rows.decoded(folder, prompts, answers, provider="CUDA")
    for got, prompt, answer in zip(logits, prompts, answers, strict=True):
        assert_close(got, in_torch(model, input_ids=[*prompt, *answer])[len(prompt) - 1 : -1])


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_has_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model, folder = exported(tmp_path, name)
    sources, answers = graph_rows.random_rows(LENGTHS), graph_rows.random_rows([STEPS] * len(LENGTHS), seed=1)
    logits = graph_rows.decoded(folder, sources, answers, provider="CUDA")
    for got, source, answer in zip(logits, sources, answers, strict=True):
        assert_close(got, in_torch(model, input_ids=source, decoder_input_ids=answer))


@pytest.mark.parametrize("beams", [2, 8])
@pytest.mark.parametrize("name", ["bart", "t5-gated"])
def test_beams_of_one_source_have_the_logits_of_transformers_on_the_gpu(tmp_path: Path, name: str, beams: int) -> None:
    model, folder = exported(tmp_path, name)
    sources, answers = graph_rows.random_rows(LENGTHS), graph_rows.random_rows([6] * beams * len(LENGTHS), seed=1)
    logits = graph_rows.decoded(folder, sources, answers, beams, provider="CUDA")
    for index, answer in enumerate(answers):
        assert_close(logits[index], in_torch(model, input_ids=sources[index // beams], decoder_input_ids=answer))


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_prompt_in_two_chunks_has_the_logits_of_the_whole_on_the_gpu(tmp_path: Path, name: str) -> None:
    model, folder = exported(tmp_path, name)
    (prompt,) = graph_rows.random_rows([40])
    row = graph_rows.Rows(folder, 1, provider="CUDA")
    row.chunk(prompt[:16])
    assert_close(row.chunk(prompt[16:])[0], in_torch(model, input_ids=prompt)[-1])


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_batching_and_cancellation_change_few_texts_on_the_gpu(tmp_path: Path, name: str) -> None:
    """With random weights, next tokens are near ties, so one text in ten may differ in another batch."""
    _, folder = exported(tmp_path, name)
    rng = random.Random(0)
    start = (2,) if name == "bart" else ()
    prompts = [tuple(row) for row in graph_rows.random_rows([rng.randint(1, 40) for _ in range(48)])]
    requests = [
        Request(prompt, Settings(max_tokens=rng.randint(1, 30), num_beams=beams, decoder_prompt=start))
        for prompt, beams in zip(prompts, [1, 1, 3, 1] * 12, strict=True)
    ]
    with Engine.open(folder, provider="CUDA", slots=8, max_queue=64) as engine:
        handles = [engine.submit(request) for request in requests]
        for handle in handles[::3]:
            handle.cancel()
        kept = [index for index in range(len(requests)) if index % 3]
        together = [handles[index].result()[0].ids for index in kept]
        alone = [engine.submit(requests[index]).result()[0].ids for index in kept]
    assert [len(ids) for ids in together] == [requests[index].settings.max_tokens for index in kept]
    assert sum(one != other for one, other in zip(together, alone, strict=True)) <= len(kept) // 10


@pytest.mark.parametrize(
    ("checkpoint", "task"),
    [("stories-gpt2", None), ("summaries-bart", "summarization"), ("summaries-t5", "summarization")],
)
def test_an_export_is_verified_on_the_gpu_and_answers_there(tmp_path: Path, checkpoint: str, task: str | None) -> None:
    options = {"precision": "fp16", "device": "gpu", "cpu_runtime": "auto", "task": task, "name": "m"}
    manifest = export_checkpoint(zoo.checkpoint(checkpoint), tmp_path, **options)
    figures: Any = manifest.parity["gpu"]
    assert figures["provider"] == "CUDA"
    texts = [example.prompt for example in zoo.heldout("stories", 20)]
    requests = [{"text_input": text} for text in texts]
    with LocalGenerator.open(tmp_path, "m", "gpu") as on_gpu:
        answers = on_gpu.infer_all(requests)
        pieces = [piece.text for piece in on_gpu.stream({**requests[0], "num_beams": 1})]
    with LocalGenerator.open(tmp_path, "m", "gpu", "CPU") as on_cpu:
        pairs = zip(answers, on_cpu.infer_all(requests), strict=True)
    assert sum(one["text_output"] == other["text_output"] for one, other in pairs) >= 18
    assert len(pieces) > 1


def test_layers_run_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only shapes of a few bytes are computed on the CPU, and no keys or values are copied."""
    _, folder = exported(tmp_path, "gpt2")
    options, opened = captures.session_options, []

    def profiled(*arguments: Any) -> Any:
        chosen = options(*arguments)
        chosen.enable_profiling = True
        chosen.profile_file_prefix = str(tmp_path / "profile")
        return chosen

    monkeypatch.setattr(captures, "session_options", profiled)
    real = captures.open_captured

    def kept(*arguments: Any) -> Any:
        net = real(*arguments)
        net.refuse("a captured graph has no events of nodes")
        opened.append(net.session)
        return net

    monkeypatch.setattr("hfx.python_backends.engine.placement.open_captured", kept)
    prompts, answers = graph_rows.random_rows(LENGTHS), graph_rows.random_rows([STEPS] * len(LENGTHS), seed=1)
    graph_rows.decoded(folder, prompts, answers, provider="CUDA")
    events = json.loads(Path(opened[0].end_profiling()).read_text())
    nodes = [event["args"] for event in events if event.get("cat") == "Node" and "provider" in event.get("args", {})]
    on_cpu = Counter(node["op_name"] for node in nodes if node["provider"] == "CPUExecutionProvider")
    on_gpu = Counter(node["op_name"] for node in nodes if node["provider"] == "CUDAExecutionProvider")
    assert {"Gemm", "GroupQueryAttention", "SkipLayerNormalization"} <= set(on_gpu)
    assert not {"Gemm", "GroupQueryAttention", "SkipLayerNormalization", "TopK", "FastGelu", "Cast"} & set(on_cpu)


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    _, folder = exported(tmp_path, "gpt2")
    with pytest.raises(ModelRefused):
        Engine.open(folder, provider="CUDA", device_id=99)
