"""KV caches: their memory on the host, and on a device (here the CPU) with the calls of CUDA's driver."""

from __future__ import annotations

import os
import random
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.graph.generator import top_k_graph
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.device_memory import Copier, Device
from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.kv_cache import CacheMaker, DeviceCache, KvCache
from hfx.python_backends.engine.picker import Picker
from hfx.python_backends.engine.plan import Limits, Span
from hfx.python_backends.engine.runners import DecoderRunner, EncoderDecoderRunner, Runner
from hfx.python_backends.engine.sessions import Binding, Reserved, open_session
from hfx.python_backends.engine.spec import read_spec
from hfx.python_backends.errors import EngineError, ProviderMissing
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import engine_invariants as invariants
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.engine_oracle import expected
from tests.rigs.engine.graph_rows import random_rows
from tests.rigs.engine.watched_engine import ONE_THREAD, random_request, serve
from tests.unit.native.libraries import compiler

LIMITS = Limits(chunk=8, prefill=32, encode=32)
DRIVER = Path(__file__).parents[2] / "rigs" / "machine" / "cuda_driver.c"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library with the driver's calls, for the CPU's memory."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    subprocess.run([*compiler(), "-xc", "-shared", "-fPIC", "-O1", "-o", str(library), str(DRIVER)], check=True)
    return str(library)


@pytest.fixture
def caches(driver: str) -> CacheMaker:
    return partial(DeviceCache, Device("cpu", 0, Copier(0, driver)))


def core_of(folder: Path, slots: int, caches: CacheMaker) -> Core:
    """Return a core whose caches are on the device, and poisoned."""
    spec = read_spec(folder)
    runner: Runner = (EncoderDecoderRunner if spec.has_encoder else DecoderRunner)(spec, slots, ONE_THREAD, caches)
    for width in spec.beams:
        runner.open_partition(width)
    for partition in runner.partitions.values():
        for cache in (partition.cache, *([partition.cross._cache] if partition.cross else [])):
            assert isinstance(cache, DeviceCache)
            cache._memory.owner.update_inplace(np.full(cache._memory.shape, np.nan, np.float32))
    scheduler = FairScheduler(slots, spec.has_encoder, LIMITS)
    return Core(scheduler, (runner,), Picker(spec, slots, ONE_THREAD), lambda _, state: invariants.check(state))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_encoder", [False, True])
def test_requests_of_all_kinds_answer_as_with_caches_on_the_host(
    tmp_path: Path, caches: CacheMaker, has_encoder: bool, seed: int
) -> None:
    folder = toys.write_encoder_decoder(tmp_path) if has_encoder else toys.write_decoder(tmp_path)
    rng = random.Random(seed)
    requests = [random_request(rng, has_encoder) for _ in range(32)]
    with serve(folder, core_of(folder, 6, caches)) as engine:
        answers = [handle.result(60) for handle in [engine.submit(request) for request in requests]]
    wanted = [expected(request) for request in requests]
    assert [[each.ids for each in answer] for answer in answers] == [[each.ids for each in answer] for answer in wanted]


@pytest.mark.parametrize("name", ["gpt2", "bart", "t5-gated"])
def test_files_for_gpus_give_the_same_bits_with_caches_on_the_device(
    tmp_path: Path, caches: CacheMaker, name: str
) -> None:
    """Sources stay on the device, and rows are copied there."""
    folder = tmp_path / "engine"
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build(name))
    spec = write_engine_folder(checkpoint, folder, FORMATS["fp16"], 127)
    rows = random_rows((5, 31, 1, 12))
    found = [_logits((EncoderDecoderRunner if spec.has_encoder else DecoderRunner)(spec, 4, ONE_THREAD, each), rows)
             for each in (KvCache, caches)]  # fmt: skip
    assert (found[0] == found[1]).all()


def _logits(runner: Runner, rows: list[list[int]]) -> Any:
    """Return the logits behind `rows` and behind each of three more tokens; row 3 becomes row 0 before each."""
    runner.open_partition(1)
    partition, found = runner.partitions[1], []
    if isinstance(runner, EncoderDecoderRunner):
        runner.encode([tuple(row) for row in rows], [[(1, row)] for row in range(len(rows))])
    else:
        runner.run([Span(tuple(ids), rows=(row,)) for row, ids in enumerate(rows)], logits=False)
    for token in (3, 4, 5):
        partition.move(0, 3)
        partition.set_next_tokens([(row, token + row) for row in range(len(rows))])
        outputs = partition.step(len(rows), logits=True)
        assert outputs.logits is not None
        found.append(outputs.logits.copy())
    return np.stack(found)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_are_copied_and_filled_within_the_device(caches: CacheMaker, dtype: str) -> None:
    """Only the requested positions are copied."""
    cache, wider = (caches(shape, dtype) for shape in ((2, 4, 2, 5, 8), (2, 3, 2, 7, 8)))
    assert isinstance(cache, DeviceCache)
    assert isinstance(wider, DeviceCache)
    content = np.random.default_rng(0).integers(-9, 9, (2, 4, 2, 5, 8)).astype(dtype)
    cache._memory.owner.update_inplace(content)
    further = np.random.default_rng(1).integers(-9, 9, (2, 3, 2, 7, 8)).astype(dtype)
    wider._memory.owner.update_inplace(further)
    cache.copy(3, 1, 4)
    cache.take(0, wider, 2, 4, 3)
    values = np.arange(3 * 2 * 8, dtype=np.float32).reshape(3, 2, 8)
    cache.put(1, 2, values)
    content[:, 1, :, :4] = content[:, 3, :, :4]
    content[:, 0, :, :3] = further[:, 2, :, 4:]
    content[1, 2, :, :3] = values.transpose(1, 0, 2)
    assert (cache._memory.owner.numpy() == content).all()


def test_a_gpu_or_driver_that_is_not_there_is_refused(driver: str) -> None:
    with pytest.raises(ProviderMissing, match="cuDeviceGet failed with CUDA's error 101"):
        Copier(1, driver)
    with pytest.raises(ProviderMissing, match=r"driver can't be loaded \(nowhere.so"):
        Copier(0, "nowhere.so")


def test_a_refusal_by_the_cuda_driver_is_an_engine_error(caches: CacheMaker) -> None:
    cache = caches((2, 4, 2, 5, 8), "float32")
    with pytest.raises(EngineError, match="cuMemcpy3D_v2 failed with CUDA's error 1"):
        cache.copy(0, 1, 6)


def test_an_array_that_is_not_contiguous_is_not_bound(tmp_path: Path) -> None:
    top_k_graph(tmp_path / "graph.onnx")
    session = open_session(tmp_path / "graph.onnx", ONE_THREAD)
    with pytest.raises(ValueError, match="scores is not contiguous"):
        Binding(session, {"scores": np.zeros((4, 3), np.float32).T, "k": np.ones(1, np.int64)}, {})


def resident() -> int:
    """Return the bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_reserved_memory_that_is_not_touched_costs_nothing() -> None:
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
