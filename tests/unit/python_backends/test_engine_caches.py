"""KV caches: their memory on the host, and on a device (here the CPU) with the calls of CUDA's driver."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np
import pytest

from hfx.exporter.graph.generator import top_k_graph
from hfx.python_backends.engine.device_memory import Copier, Device
from hfx.python_backends.engine.kv_cache import DeviceCache, KvCache
from hfx.python_backends.engine.sessions import Binding, Reserved, open_session
from hfx.python_backends.errors import DeviceLost, EngineError, ProviderMissing
from tests.rigs.engine.watched_engine import ONE_THREAD
from tests.rigs.machine.cuda_driver import Driver


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def device(driver: Driver) -> Device:
    return driver.device()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_are_copied_and_filled_within_the_device(device: Device, dtype: str) -> None:
    """Only the requested positions are copied."""
    content = np.random.default_rng(0).integers(-9, 9, (2, 4, 2, 5, 8)).astype(dtype)
    further = np.random.default_rng(1).integers(-9, 9, (2, 3, 2, 7, 8)).astype(dtype)
    cache, wider = (DeviceCache(device, array.shape, dtype) for array in (content, further))
    for part, row in np.ndindex(2, 4):
        cache.put(part, row, content[part, row].transpose(1, 0, 2))
    for part, row in np.ndindex(2, 3):
        wider.put(part, row, further[part, row].transpose(1, 0, 2))
    cache.copy(3, 1, 4)
    cache.take(0, wider, 2, 4, 3)
    values = np.arange(3 * 2 * 8, dtype=np.float32).reshape(3, 2, 8)
    cache.put(1, 2, values)
    content[:, 1, :, :4] = content[:, 3, :, :4]
    content[:, 0, :, :3] = further[:, 2, :, 4:]
    content[1, 2, :, :3] = values.transpose(1, 0, 2)
    for part in range(2):
        assert (cache.part(part, 0, 4).download() == content[part]).all()
    assert (cache.part(1, 0, 4)[1:3].download() == content[1, 1:3]).all()


def test_a_gpu_or_driver_that_is_not_there_is_refused(driver: Driver) -> None:
    with pytest.raises(ProviderMissing, match="cuDeviceGet failed with CUDA's error 101"):
        Copier(1, driver.path)
    with pytest.raises(ProviderMissing, match=r"driver can't be loaded \(nowhere.so"):
        Copier(0, "nowhere.so")


def test_a_refusal_by_the_cuda_driver_is_an_engine_error(device: Device) -> None:
    cache = DeviceCache(device, (2, 4, 2, 5, 8), "float32")
    with pytest.raises(EngineError, match="cuMemcpy3DAsync_v2 failed with CUDA's error 1"):
        cache.copy(0, 1, 6)


@pytest.mark.parametrize("name", ["cuMemAlloc_v2", "cuMemHostAlloc"])
def test_memory_that_a_gpu_lacks_is_named_with_its_size_and_what_to_do(
    driver: Driver, device: Device, name: str
) -> None:
    with driver.failing(name, 2), pytest.raises(ProviderMissing, match=r"no 4,096 bytes of memory.*lower slots"):
        device.memory(4096, on_host=name == "cuMemHostAlloc")


@pytest.mark.parametrize(
    "name", ["cuMemAlloc_v2", "cuMemcpy3DAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuCtxSetCurrent"]
)
def test_any_other_error_loses_the_device(driver: Driver, device: Device, name: str) -> None:
    cache = DeviceCache(device, (2, 2, 1, 4, 8), "float32")

    def use() -> None:
        cache.copy(0, 1, 2)
        device.allocate((4,), np.float32).download()

    with driver.failing(name, 719), pytest.raises(DeviceLost, match=f"{name} failed with CUDA's error 719"):
        use()


def test_memory_on_a_device_is_freed_with_its_last_reference(driver: Driver, device: Device) -> None:
    before = driver.allocated
    array = device.allocate((4, 4), np.float32)
    row = array[1:2]
    del array
    assert driver.allocated == before + 1
    del row
    assert driver.allocated == before


def test_an_array_that_is_not_contiguous_is_not_bound(tmp_path: Path) -> None:
    top_k_graph(tmp_path / "graph.onnx")
    session = open_session(tmp_path / "graph.onnx", ONE_THREAD)
    with pytest.raises(ValueError, match="scores is not contiguous"):
        Binding(session, {"scores": np.zeros((4, 3), np.float32).T, "k": np.ones(1, np.int64)}, {})


def test_a_run_keeps_its_arrays_alive(tmp_path: Path) -> None:
    top_k_graph(tmp_path / "graph.onnx")
    scores = np.zeros((4, 3), np.float32)
    alive = weakref.ref(scores)
    run = Binding(open_session(tmp_path / "graph.onnx", ONE_THREAD), {"scores": scores}, {}).run
    del scores
    assert alive() is not None
    del run
    assert alive() is None


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
