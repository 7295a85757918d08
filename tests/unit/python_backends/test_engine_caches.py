"""Caches: what costs memory on the host; and on a device, which is the CPU here, with the calls of a GPU."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.kv_cache import SOURCE, TARGET, DeviceCache, KvCache, copy_graph
from hfx.python_backends.engine.picker import Picker
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.runners import DecoderRunner, EncoderDecoderRunner, Runner
from hfx.python_backends.engine.sessions import Binding, Reserved, open_session
from hfx.python_backends.engine.spec import read_spec
from tests.rigs import engine_invariants as invariants
from tests.rigs import engine_toys as toys
from tests.rigs.engine_oracle import expected
from tests.rigs.engine_rig import ONE_THREAD, random_request, serve

CACHES = partial(DeviceCache, ONE_THREAD, "cpu")
LIMITS = Limits(chunk=8, prefill=32, encode=32)


def core_of(folder: Path, slots: int) -> Core:
    """A core whose caches are on the device, and poisoned."""
    spec = read_spec(folder)
    runner: Runner = (EncoderDecoderRunner if spec.has_encoder else DecoderRunner)(spec, slots, ONE_THREAD, CACHES)
    for width in spec.beams:
        runner.open_partition(width)
    for partition in runner.partitions.values():
        for cache in (partition.cache, *([partition.cross._cache] if partition.cross else [])):
            assert isinstance(cache, DeviceCache)
            cache._memory.update_inplace(np.full(cache._memory.shape(), np.nan, np.float32))
    scheduler = FairScheduler(slots, spec.has_encoder, LIMITS)
    return Core(scheduler, (runner,), Picker(spec, slots, ONE_THREAD), lambda _, state: invariants.check(state))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_encoder", [False, True])
def test_requests_of_all_kinds_answer_as_with_caches_on_the_host(tmp_path: Path, has_encoder: bool, seed: int) -> None:
    folder = toys.write_encoder_decoder(tmp_path) if has_encoder else toys.write_decoder(tmp_path)
    rng = random.Random(seed)
    requests = [random_request(rng, has_encoder) for _ in range(32)]
    with serve(folder, core_of(folder, 6)) as engine:
        answers = [handle.result(60) for handle in [engine.submit(request) for request in requests]]
    wanted = [expected(request) for request in requests]
    assert [[each.ids for each in answer] for answer in answers] == [[each.ids for each in answer] for answer in wanted]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_are_copied_and_filled_within_the_device(dtype: str) -> None:
    cache = CACHES((2, 4, 2, 5, 8), dtype)
    content = np.random.default_rng(0).integers(-9, 9, (2, 4, 2, 5, 8)).astype(dtype)
    cache._memory.update_inplace(content)
    cache.copy(3, 1, 5)
    values = np.arange(3 * 2 * 8, dtype=np.float32).reshape(3, 2, 8)
    cache.put(1, 2, values)
    content[:, 1] = content[:, 3]
    content[1, 2, :, :3] = values.transpose(1, 0, 2)
    held = cache._memory.numpy()
    assert (held[:, [0, 1, 3]] == content[:, [0, 1, 3]]).all()
    assert (held[1, 2, :, :3] == content[1, 2, :, :3]).all()
    assert (held[0, 2] == content[0, 2]).all()


def test_what_is_not_contiguous_is_not_bound() -> None:
    source = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(ValueError, match="source is not contiguous"):
        Binding(open_session(copy_graph("float32"), ONE_THREAD), {SOURCE: source.T}, {TARGET: source})


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_that_nobody_touched_costs_nothing() -> None:
    before = resident()
    huge = Reserved((1 << 20, 1 << 14), np.float32)  # 64 GB
    huge.array[::200_000, 0] = 1
    assert resident() - before < 1 << 20


def test_memory_that_is_given_back_is_free_and_its_neighbour_is_kept() -> None:
    cache = KvCache((4, 4, 8, 1024, 64), "float32")  # 2 MB a row and layer
    cache.array[:] = 1
    full = resident()
    cache.release(1)
    assert full - resident() > 0.95 * cache.array.nbytes * 3 / 4
    assert (cache.array[:, 0] == 1).all()
    cache.array[:, 1:] = 2
    assert (cache.array[:, 0] == 1).all()
