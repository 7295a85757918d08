"""Sources are encoded in few shapes, and a source's own shape follows from its length alone."""

from __future__ import annotations

import random

from hfx.python_backends.engine.paged_encoder_decoder_runner import batches, padded_length


def test_lengths_are_rounded_up_to_few_sizes_and_never_beyond_what_the_model_reads() -> None:
    padded = [padded_length(length, 1000) for length in range(1, 1001)]
    assert all(length <= width for length, width in enumerate(padded, 1))
    assert max(padded) == 1000
    assert len(set(padded)) <= 24
    assert all(width - length < max(16, length / 2) for length, width in enumerate(padded, 1))


def test_every_source_is_in_one_run_with_others_of_its_padded_length() -> None:
    rng = random.Random(1)
    for _ in range(200):
        lengths = [rng.randint(1, 300) for _ in range(rng.randint(1, 40))]
        runs = list(batches(lengths, 300, 64))
        assert sorted(at for _, places in runs for at in places) == list(range(len(lengths)))
        assert all(padded_length(lengths[at], 300) == width for width, places in runs for at in places)


def test_runs_have_one_two_four_sources_and_so_on() -> None:
    assert [len(places) for _, places in batches([10] * 13, 100, 64)] == [8, 4, 1]
