"""OpenVINO's runner beside ONNX Runtime's: the same tokens and numbers, and which of them serves when."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.exporter.config_file import read_config
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import Checkpoint
from hfx.exporter.weight_files import find_weights
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.runner import Outputs, Runner
from hfx.python_backends.engine.runners import chosen_runtime, open_runner
from hfx.python_backends.engine.scheduler import Limits
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import read_spec

from .test_engine_families import FAMILIES, LIMITS, VOCABULARY, model

RUNTIMES = ("onnxruntime", "openvino")
PROMPTS = ((3, 5, 7, 11, 2), (9, 8), (4,), tuple(range(3, 70)))
# Sums of the same float32 products in another order; these models' weights are wide, so that it grows to 5e-4.
CLOSE = 2e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Family -> engine folder in fp32 with both runtimes' files."""

    @cache
    def write(family: str) -> Path:
        root = tmp_path_factory.mktemp(family)
        model(family).save_pretrained(root / "checkpoint")
        found = root / "checkpoint"
        checkpoint = Checkpoint(str(found), found, None, read_config(found), find_weights(found))
        write_engine_folder(checkpoint, root / "engine", FORMATS["fp32"], levels=63, openvino=True)
        return root / "engine"

    return write


@pytest.fixture
def copied(folder: Any, tmp_path: Path) -> Path:
    """A GPT-2's engine folder to be changed."""
    return Path(shutil.copytree(folder("gpt2"), tmp_path / "engine"))


def changed(folder: Path, **facts: Any) -> Path:
    """The folder with other facts; `openvino__x` is a fact of its OpenVINO files; None: without it."""
    content = json.loads((folder / "engine.json").read_text())
    for name, value in facts.items():
        place, _, key = name.rpartition("__")
        where = content[place] if place else content
        where[key] = value
        if value is None:
            del where[key]
    (folder / "engine.json").write_text(json.dumps(content))
    return folder


def runners(folder: Path, slots: int = 8) -> list[Runner]:
    """Each runtime's runner of a model, with its lanes open."""
    found = []
    for runtime in RUNTIMES:
        runner = open_runner(read_spec(folder), slots, SessionSettings(threads=1, runtime=runtime), Limits())
        assert runner.runtime == runtime
        for width in (1, 2, 4):
            runner.open_lane(width)
        found.append(runner)
    return found


def assert_alike(outputs: Sequence[Outputs]) -> None:
    """The outputs of both runtimes are the same but for rounding."""
    wanted, found = outputs
    assert found.logits is not None and wanted.logits is not None
    assert found.next_ids.tolist() == wanted.next_ids.tolist()
    assert found.logits.shape == wanted.logits.shape == (len(wanted.next_ids), VOCABULARY)
    assert np.allclose(found.logits, wanted.logits, atol=CLOSE)


SIGNALLED = """
import signal, sys, threading
from pathlib import Path
from hfx.python_backends.engine.openvino_model import OpenVinoModel
from hfx.python_backends.engine.sessions import SessionSettings
from hfx.python_backends.engine.spec import read_spec

spec = read_spec(Path(sys.argv[1]))
opened = [OpenVinoModel(spec.openvino.decoder, spec, SessionSettings(threads=1))]
last = threading.Thread(target=opened.clear)
last.start()
last.join()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_is_survived_after_another_thread_has_freed_the_model(folder: Any) -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED, folder("gpt2")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_tokens_and_their_log_probabilities_are_those_of_onnxruntime(family: str, folder: Any) -> None:
    start = () if family == "gpt2" else (model(family).config.decoder_start_token_id,)
    shared: dict[str, Any] = {"max_tokens": 40, "do_sample": True, "num_return_sequences": 3, "log_probs": True}
    requests = [Request(prompt, Settings(**shared, seed=7, decoder_prompt=start)) for prompt in PROMPTS]
    answers = []
    for runtime in RUNTIMES:
        with Engine.open(folder(family), threads=1, limits=LIMITS, runtime=runtime) as engine:
            assert engine.runtime == runtime
            handles = [engine.submit(request) for request in requests]
            answers.append([each for handle in handles for each in handle.result(120)])
    for wanted, found in zip(*answers, strict=True):
        assert found.ids == wanted.ids
        assert np.allclose(found.log_probs, wanted.log_probs, atol=CLOSE)


def test_prompts_parts_of_them_copies_moves_and_steps_are_the_same_runs(folder: Any) -> None:
    both = runners(folder("gpt2"))
    assert_alike([runner.prefill(0, PROMPTS, logits=True) for runner in both])
    long = tuple(range(3, 100))
    for start, stop in ((0, 33), (33, 64), (64, 97)):
        assert_alike([runner.chunk(long[start:stop], start, logits=True) for runner in both])
    for runner in both:
        runner.land(4)
        runner.land(5)
        runner.copy_row(3, 6)
        runner.move(1, 6, 1)
        runner.follow(1, [(4, 5)])
        runner.feed(1, [(row, 5 + row) for row in range(6)])
    for step in range(40):
        assert_alike([runner.step(1, 6, logits=True) for runner in both])
        for runner in both:
            runner.feed(1, [(4, 7), (5, 9 + step % 3)])
    for runner in both:
        runner.follow(1, [(5, 4)])
        runner.feed(1, [(4, 8), (5, 8)])
    outputs = [runner.step(1, 6, logits=True) for runner in both]
    assert_alike(outputs)
    assert all((each.logits[4] == each.logits[5]).all() for each in outputs if each.logits is not None)
    for runner in both:
        runner.close()


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_sources_beams_and_moves_are_the_same_runs(family: str, width: int, folder: Any) -> None:
    both = runners(folder(family), slots=16)
    sources = [PROMPTS[0], PROMPTS[3], (5, 4, 3, 2, 9)]
    for runner in both:
        runner.encode(sources, [[(width, 0)], [(width, 1), (width, 3)], [(width, 2)]])
        runner.move(width, 3, 0)
        runner.feed(width, [(row, 2) for row in range(3 * width)])
    for step in range(70):
        assert_alike([runner.step(width, 3, logits=True) for runner in both])
        for runner in both:
            if width > 1:
                runner.follow(width, [(width + step % 2, width + 1 - step % 2)])
            runner.feed(width, [(row, 3 + (7 * step + row) % 50) for row in range(3 * width)])
    for runner in both:
        runner.close()


def test_a_source_of_several_units_is_kept_once(folder: Any) -> None:
    runner: Any = runners(folder("bart"))[1]
    free = runner.sources.pool.free
    runner.encode([PROMPTS[3]], [[(1, 0), (1, 1), (1, 2)]])
    assert free - runner.sources.pool.free == 3  # blocks of 32 for 67 positions
    runner.occupy([])
    assert runner.sources.pool.free == free


def test_rows_that_share_a_prompt_share_its_blocks(folder: Any) -> None:
    runner: Any = runners(folder("gpt2"))[1]
    free = runner.cache.pool.free
    runner.prefill(0, [PROMPTS[3]], logits=False)
    for row in (1, 2, 3):
        runner.copy_row(0, row)
    assert free - runner.cache.pool.free == 3 + 3 + 1  # three for all, a last one more for each copy, and one of pads
    runner.feed(1, [(0, 5)])
    runner.step(1, 1, logits=False)
    beside = runner._least - 1  # rows that a lone one has beside it
    assert free - runner.cache.pool.free == 3 + 1 + beside  # of pads
    runner.give_back()
    assert runner.cache.pool.free == free


def test_the_model_chooses_the_runtime_unless_the_caller_does(copied: Path) -> None:
    assert chosen_runtime(read_spec(copied), SessionSettings()) == "openvino"
    assert chosen_runtime(read_spec(copied), SessionSettings(runtime="onnxruntime")) == "onnxruntime"
    assert chosen_runtime(read_spec(copied), SessionSettings(provider="CUDA", runtime="openvino")) == "onnxruntime"
    changed(copied, runtime="onnxruntime")
    assert chosen_runtime(read_spec(copied), SessionSettings()) == "onnxruntime"
    assert chosen_runtime(read_spec(copied), SessionSettings(runtime="openvino")) == "openvino"
    changed(copied, runtime=None, openvino=None)  # as it was written before there was a choice
    assert chosen_runtime(read_spec(copied), SessionSettings()) == "onnxruntime"
