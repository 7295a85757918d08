"""A runner alone: prompts, chunks, steps and moves on a cache that is NaN wherever nothing was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.python_backends.engine.plan import Span
from hfx.python_backends.engine.runners import DecoderRunner, EncoderDecoderRunner
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.watched_engine import ONE_THREAD, Watch

PROMPTS = ((3, 5, 7, 11, 2), (9, 1), (4,), (1, 2, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `decoder` and `encoder-decoder`."""
    root = tmp_path_factory.mktemp("toys")
    toys.write_decoder(root / "decoder")
    toys.write_encoder_decoder(root / "encoder-decoder")
    return root


def opened(folder: Path, slots: int) -> Any:
    """Return the folder's runner with partitions for 1, 2 and 4 beams; all of its memory is poisoned."""
    runner = open_runner(read_spec(folder), slots, ONE_THREAD)
    for width in (1, 2, 4):
        runner.open_partition(width)
    Watch(runner).poison({})
    return runner


@pytest.fixture
def decoder(folder: Path) -> DecoderRunner:
    runner: DecoderRunner = opened(folder / "decoder", 6)
    return runner


@pytest.fixture
def encoder_decoder(folder: Path) -> EncoderDecoderRunner:
    runner: EncoderDecoderRunner = opened(folder / "encoder-decoder", 8)
    return runner


def targets(histories: list[list[int]]) -> list[int]:
    return [toys.target(history) for history in histories]


def test_a_ragged_prefill_gives_each_row_its_own_next_token_and_logits(decoder: DecoderRunner) -> None:
    outputs = decoder.run([Span(prompt, rows=(row,)) for row, prompt in enumerate(PROMPTS, 1)], logits=True)
    assert outputs.next_ids[:, 0].tolist() == [toys.target(prompt) for prompt in PROMPTS]
    assert outputs.logits is not None
    assert (outputs.logits == np.stack([toys.logits(prompt) for prompt in PROMPTS])).all()
    assert decoder.partition.lengths[1:5].tolist() == [5, 2, 1, 3]


@pytest.mark.parametrize("sizes", [(4, 4, 3), (1, 1, 1), (7, 1), (11,)])
def test_chunks_land_as_if_the_prompt_had_been_run_whole(decoder: DecoderRunner, sizes: tuple[int, ...]) -> None:
    prompt = tuple((7 * at + 3) % toys.VOCABULARY for at in range(sum(sizes)))
    start = 0
    for size in sizes:
        rows = (0, 1) if start + size == len(prompt) else ()
        outputs = decoder.run([Span(prompt[start : start + size], start, rows)], logits=True)
        start += size
    assert outputs.next_ids[0, 0] == toys.target(prompt)
    decoder.partitions[1].set_next_tokens([(0, 5), (1, 6)])
    assert decoder.partitions[1].step(2, logits=False).next_ids[:, 0].tolist() == targets([[*prompt, 5], [*prompt, 6]])


@pytest.mark.parametrize("length", [31, 60])
def test_rows_that_share_a_history_write_on_in_their_own(decoder: DecoderRunner, length: int) -> None:
    prompt = tuple((7 * at + 3) % toys.VOCABULARY for at in range(length))
    decoder.run([Span(prompt, rows=(0, 1, 2))], logits=False)
    histories = [[*prompt] for _ in range(3)]
    for step in range(3):
        fed = [(row, (5 * row + step) % toys.VOCABULARY) for row in range(3)]
        for row, token in fed:
            histories[row].append(token)
        decoder.partitions[1].set_next_tokens(fed)
        assert decoder.partitions[1].step(3, logits=False).next_ids[:, 0].tolist() == targets(histories)
    decoder.partitions[1].reorder_cache([(2, 0)])
    histories[0] = [*histories[2]]
    decoder.partitions[1].set_next_tokens([(0, 1), (1, 2), (2, 3)])
    wanted = targets([[*history, at] for at, history in enumerate(histories, 1)])
    assert decoder.partitions[1].step(3, logits=False).next_ids[:, 0].tolist() == wanted


def test_one_source_can_go_to_several_units_and_units_move_with_it(encoder_decoder: EncoderDecoderRunner) -> None:
    source = PROMPTS[0]
    encoder_decoder.encode([PROMPTS[1], source], [[(2, 0)], [(2, 1), (2, 3)]])
    encoder_decoder.partitions[2].set_next_tokens([(row, row + 1) for row in range(8)])
    encoder_decoder.partitions[2].move(3, 0)
    outputs = encoder_decoder.partitions[2].step(2, logits=False)
    assert outputs.next_ids[:, 0].tolist() == [toys.target([fed], source) for fed in (7, 8, 3, 4)]


def test_a_partition_is_opened_once_and_the_others_not_at_all(folder: Path) -> None:
    runner = open_runner(read_spec(folder / "encoder-decoder"), 8, ONE_THREAD)
    runner.open_partition(2)
    partition = runner.partitions[2]
    runner.open_partition(2)
    assert runner.partitions == {2: partition}


def test_partitions_together_keep_no_more_memory_than_the_slots(encoder_decoder: EncoderDecoderRunner) -> None:
    partitions = encoder_decoder.partitions
    encoder_decoder.trim([(1, 8)])
    encoder_decoder.trim([(1, 2)])
    assert partitions[1].touched == 8  # kept, as no other request needs it
    encoder_decoder.trim([(1, 2), (2, 3)])
    assert (partitions[1].touched, partitions[2].touched) == (2, 3)
    encoder_decoder.release_memory()
    assert (partitions[1].touched, partitions[2].touched) == (0, 0)
