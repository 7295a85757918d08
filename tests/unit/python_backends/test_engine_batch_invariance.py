"""An answer has the same log-probability bits in any batch, for every runtime and precision."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS, FORMATS_TRIED
from hfx.exporter.runtime import weight_levels
from hfx.native import library
from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.partition import StepSize
from hfx.python_backends.engine.picker import Picker
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.probes import probed_size, rows_for
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.scores import HostScores
from hfx.python_backends.engine.spec import RUNTIMES, read_spec
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.published import VNNI
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.engine_oracle import expected
from tests.rigs.engine.watched_engine import ONE_THREAD, random_request, serve
from tests.rigs.machine.processors import HAS_NATIVE, KERNELS

WAYS: tuple[dict[str, Any], ...] = (
    {"top_log_probs": 5}, {"do_sample": True, "seed": 5, "top_log_probs": 20}, {"num_beams": 3}, {},
)  # fmt: skip
# Wide enough for kernels that tiny models never reach; sources and prompts of many lengths.
POSITIONS = 256
WEIGHTS = {**FORMATS, "int4 in large blocks": FORMATS_TRIED["int4"][0]}
SLOTS = 23  # an odd number, above that of rows that are kept for the padding of prompts
WIDE: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 128, "n_head": 4, "n_positions": POSITIONS},
    "bart": {
        "d_model": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512, "max_position_embeddings": POSITIONS,
    },
    "t5": {"d_model": 128, "d_kv": 32, "num_heads": 4, "d_ff": 512},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A function of (family, precision) that returns the engine folder of a random model."""

    @cache
    def write(family: str, precision: str) -> Path:
        made = tmp_path_factory.mktemp(family)
        checkpoint = tiny_generators.save(made / "checkpoint", tiny_generators.build(family, **WIDE[family]))
        operators = library() if HAS_NATIVE else None
        write_engine_folder(checkpoint, made / "engine", WEIGHTS[precision], weight_levels(), library=operators)
        return made / "engine"

    return write


def answers(engine: Engine, requests: Sequence[Request], size: int) -> list[tuple[Event, ...]]:
    """Return the answers to `requests`, `size` at a time."""
    found: list[tuple[Event, ...]] = []
    for at in range(0, len(requests), size):
        found += [handle.result(120) for handle in [engine.submit(each) for each in requests[at : at + size]]]
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4", "int4 in large blocks"])
@pytest.mark.parametrize("family", WIDE)
def test_answers_have_the_same_bits_alone_and_in_any_batch(
    folder: Callable[[str, str], Path], family: str, precision: str, runtime: str
) -> None:
    if runtime == "native" and not HAS_NATIVE:
        pytest.skip("its operators are for processors with VNNI")
    if runtime == "onnxruntime" and precision == "int4 in large blocks" and not VNNI:
        pytest.skip("without VNNI its products of large blocks depend on the batch, and no such export is published")
    rng = random.Random(11)
    start = () if family == "gpt2" else (0,)
    requests = [
        Request(
            tuple(rng.randrange(tiny_generators.VOCABULARY) for _ in range(length)),
            Settings(max_tokens=rng.choice((3, 9)), log_probs=True, decoder_prompt=start, **WAYS[at % len(WAYS)]),
            document=at % 3,
        )
        for at, length in enumerate((1, 2, 5, 16, 17, 31, 64, 65, 130, 200, 40, 3, 2))
    ]
    with Engine.open(folder(family, precision), slots=8, max_queue=len(requests), threads=2, runtime=runtime) as engine:
        assert engine.runtime == runtime
        together = answers(engine, requests, len(requests))
        assert answers(engine, requests[::-1], len(requests))[::-1] == together
        for size in (1, 2, 3):
            assert answers(engine, requests, size) == together
        assert answers(engine, [replace(each, document=0) for each in requests], 4) == together
    assert all(each.log_probs for one in together for each in one)
    assert len({each.ids for one in together for each in one}) > len(requests) // 4


# Prints the answers of the engines of some folders to requests of many lengths.
ANSWERS = """
import sys
from pathlib import Path
from hfx.native import kernels
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
print(kernels(), file=sys.stderr)
lengths = (1, 2, 17, 64, 130, 40)
prompts = [tuple((7 * place + row) % 90 for place in range(length)) for row, length in enumerate(lengths)]
for word in sys.argv[1:]:
    folder, _, start = word.partition(",")
    settings = Settings(max_tokens=9, log_probs=True, top_log_probs=5, decoder_prompt=(int(start),) if start else ())
    with Engine.open(Path(folder), slots=8, max_queue=8, threads=1, runtime="native") as engine:
        print([handle.result(60) for handle in [engine.submit(Request(prompt, settings)) for prompt in prompts]])
"""


@pytest.mark.skipif(not HAS_NATIVE or len(KERNELS) < 2, reason="this processor runs one kind of kernels, or none")
def test_answers_are_the_same_with_all_kernels(folder: Callable[[str, str], Path]) -> None:
    """Only kernels that this processor can run are tested; a process chooses its kernels once."""
    pairs = [(family, precision) for family in WIDE for precision in ("int8", "int4 in large blocks")]
    folders = [f"{folder(*pair)}{'' if pair[0] == 'gpt2' else ',0'}" for pair in pairs]
    words, found = [sys.executable, "-c", ANSWERS, *folders], {}
    for name in KERNELS:
        environment = {**os.environ, "HFX_NATIVE_KERNELS": name}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1:] == [name]
        found[name] = dict(zip(pairs, done.stdout.splitlines(), strict=True))
    for pair in pairs:
        texts = [each[pair] for each in found.values()]
        assert len(set(texts)) == 1 and "log_probs=(" in texts[0], pair


@pytest.mark.parametrize(
    ("other", "least"),
    [((), 1), ((1,), 2), ((1, 2), 4), ((8,), 16), ((1, 8), 16)],
)
def test_steps_are_padded_to_the_number_of_sequences_with_equal_answers(other: tuple[int, ...], least: int) -> None:
    size = probed_size(lambda count: {b"other" if count in other else b"same"}, 32)
    assert size == StepSize(least)
    assert [size.of(count) for count in (1, least, 31)] == [least, least, 31]


@pytest.mark.parametrize("slots", [5, 8, 16, 20, 32, 100])
@pytest.mark.parametrize("together", [2, 4, 8])
def test_steps_leave_no_row_to_another_kernel(together: int, slots: int) -> None:
    """One kernel takes `together` rows at a time, another one takes the remaining rows."""

    def logits_of(count: int) -> set[bytes]:
        whole, rest = divmod(count, together)
        return {b"together"} if not rest else {b"together", b"alone"} if whole else {b"alone"}

    size = probed_size(logits_of, slots)
    assert size == StepSize(together, together)
    for count in range(1, slots + 1):
        assert logits_of(size.of(count)) == {b"together"} and count <= size.of(count) <= rows_for(slots)


def test_batches_whose_answers_differ_on_this_processor_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert probed_size(lambda count: {b"many" if count == 64 else b"few"}, 64) == StepSize(2)
    (record,) = caplog.records
    assert "depend on the batch up to 64 sequences" in record.getMessage()


@pytest.mark.parametrize("multiple", [2, 4])
@pytest.mark.parametrize("has_encoder", [False, True])
def test_padded_steps_and_prompts_answer_alike(tmp_path: Path, has_encoder: bool, multiple: int) -> None:
    folder = toys.write_encoder_decoder(tmp_path) if has_encoder else toys.write_decoder(tmp_path)
    spec, limits, rng = read_spec(folder), Limits(chunk=8, prefill=400, encode=32), random.Random(multiple)
    runner = open_runner(spec, SLOTS, ONE_THREAD)
    for width in spec.beams:
        runner.open_partition(width)
    for partition in runner.partitions.values():
        partition.size = StepSize(multiple, multiple)
    requests = [random_request(rng, has_encoder) for _ in range(60)]
    scheduler = FairScheduler(SLOTS, has_encoder, limits)
    with serve(folder, Core(scheduler, (runner,), Picker(HostScores(spec, SLOTS, ONE_THREAD)))) as engine:
        answers = [handle.result(60) for handle in [engine.submit(request) for request in requests]]
    wanted = [expected(request) for request in requests]
    assert [[each.ids for each in answer] for answer in answers] == [[each.ids for each in answer] for answer in wanted]
