"""OpenVINO's runner: signals, shared blocks, shapes of encoded sources, and when it serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hfx.python_backends.engine.openvino.runners import batches, padded_length
from hfx.python_backends.engine.plan import Span
from hfx.python_backends.engine.runner import SessionSettings
from hfx.python_backends.engine.runners import chosen_runtime, open_runner
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.engine_rig import ONE_THREAD
from tests.rigs.openvino_toys import write_toy

PROMPT = (3,) * 67  # in three blocks of 32

SIGNALLED = """
import signal, sys, threading
from pathlib import Path
from hfx.python_backends.engine.openvino.model import OpenVinoModel
from hfx.python_backends.engine.runner import SessionSettings
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


def test_a_signal_is_survived_after_another_thread_has_freed_the_model(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIGNALLED, write_toy(tmp_path, "decoder", "openvino")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def opened(folder: Path, kind: str) -> Any:
    spec = read_spec(write_toy(folder, kind, "openvino", max_length=128))
    runner = open_runner(spec, 8, ONE_THREAD)
    runner.open_partition(1)
    return runner


def test_a_source_of_several_units_is_kept_once(tmp_path: Path) -> None:
    runner = opened(tmp_path, "encoder_decoder")
    free = len(runner.sources.pool.free)
    runner.encode([PROMPT[:40]], [[(1, 0), (1, 1), (1, 2)]])
    assert free - len(runner.sources.pool.free) == 2
    runner.trim([])
    assert len(runner.sources.pool.free) == free


def test_rows_that_share_a_prompt_share_its_blocks(tmp_path: Path) -> None:
    runner = opened(tmp_path, "decoder")
    free = len(runner.cache.pool.free)
    runner.run([Span(PROMPT, rows=(0, 1, 2, 3))], logits=False)
    # Three for all, a last one more for each copy, and one of pads.
    assert free - len(runner.cache.pool.free) == 3 + 3 + 1
    runner.partition.set_next_tokens([(0, 5)])
    runner.partition.step(1, logits=False)
    beside = runner.partition.size.of(1) - 1  # rows that a lone one has beside it
    assert free - len(runner.cache.pool.free) == 3 + 1 + beside  # of pads
    runner.release_memory()
    assert len(runner.cache.pool.free) == free


def test_the_model_chooses_the_runtime_unless_the_caller_does(tmp_path: Path) -> None:
    folder = write_toy(tmp_path, "decoder", "openvino")

    def chosen(**settings: Any) -> str:
        return chosen_runtime(read_spec(folder), SessionSettings(**settings))

    assert chosen() == "openvino"
    assert chosen(runtime="onnxruntime") == "onnxruntime"
    assert chosen(provider="CUDA", runtime="openvino") == "onnxruntime"
    facts = json.loads((folder / "engine.json").read_text())
    (folder / "engine.json").write_text(json.dumps(facts | {"runtime": "onnxruntime"}))
    assert chosen() == "onnxruntime"
    assert chosen(runtime="openvino") == "openvino"


def test_lengths_are_rounded_up_to_few_sizes_and_never_beyond_what_the_model_reads() -> None:
    padded = [padded_length(length, 1000) for length in range(1, 1001)]
    assert all(length <= width for length, width in enumerate(padded, 1))
    assert max(padded) == 1000
    assert len(set(padded)) <= 24
    assert all(width - length < max(16, length / 2) for length, width in enumerate(padded, 1))


def test_sources_of_one_padded_length_are_run_by_eight_four_two_or_one() -> None:
    lengths = [10, 20, 300, 12, 10, 17, 16, 1] * 4
    runs = list(batches(lengths, 300, 8))
    assert sorted(at for _, places in runs for at in places) == list(range(len(lengths)))
    assert all(padded_length(lengths[at], 300) == width for width, places in runs for at in places)
    assert [len(places) for _, places in batches([10] * 21, 100, 8)] == [8, 8, 4, 1]
