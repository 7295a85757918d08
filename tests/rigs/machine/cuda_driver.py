"""CUDA's driver for tests (cuda_driver.c), and sessions on the CPU that behave as those on a GPU do.

Device memory is the CPU's, so that ONNX Runtime's CPU provider reads and writes it.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.python_backends.engine import placement
from hfx.python_backends.engine.captures import GRAPH, NOT_CAPTURED, CapturedNet
from hfx.python_backends.engine.device_memory import Copier, Device, DeviceCounts
from hfx.python_backends.engine.sessions import SessionSettings, open_session
from tests.unit.native.libraries import compiler

SOURCE = Path(__file__).with_suffix(".c")
RUNS_OF_A_CAPTURE = 3  # ONNX Runtime: two to allocate memory, and the graph's own


class Driver:
    """The driver, as a library in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "libcuda.so")
        subprocess.run([*compiler(), "-xc", "-shared", "-fPIC", "-O1", "-o", self.path, str(SOURCE)], check=True)
        self._library = ctypes.CDLL(self.path)
        self._calls: deque[Any] = deque(maxlen=4096)

    def device(self) -> Device:
        """Return a device whose memory is the CPU's."""
        return Device("cpu", 0, Copier(0, self.path))

    @property
    def allocated(self) -> int:
        """The number of blocks of memory that were not freed."""
        return int(self._library.rig_allocated())

    @contextmanager
    def failing(self, name: str, code: int) -> Iterator[None]:
        """Have the function `name` fail with `code`."""
        self._library.rig_fail(name.encode(), code)
        try:
            yield
        finally:
            self._library.rig_fail(b"", 0)

    def flush(self) -> None:
        """Carry out what was begun."""
        self._library.rig_flush()
        self._calls.clear()

    def enqueue(self, call: Callable[[], None]) -> None:
        """Have `call` carried out after what was begun, and before what will be."""
        self._calls.append(ctypes.CFUNCTYPE(None)(call))  # keeps it until the next flush
        self._library.rig_enqueue(self._calls[-1])

    def open_sessions(
        self, monkeypatch: pytest.MonkeyPatch, refuses: Callable[[int], bool] = lambda run: False
    ) -> None:
        """Have an engine open sessions on the CPU that behave as on a GPU; `refuses` says which captures fail."""

        def opened(model: Path, settings: SessionSettings, device: Device, counts: DeviceCounts) -> CapturedNet:
            return CapturedNet(DeviceSession(open_session(model, settings), self, refuses), model.name, device, counts)

        monkeypatch.setattr(placement, "open_captured", opened)
        monkeypatch.setattr(placement, "open_on_gpu", open_session)


class DeviceSession:
    """A session whose runs follow the copies in the stream, and which replays runs with a graph's number.

    A replayed run has the addresses and the values of scalars from the time when it was captured, and is carried out
    when the stream is synchronized. Other runs are carried out at once, as they read scalars.
    """

    def __init__(self, session: Any, driver: Driver, refuses: Callable[[int], bool]) -> None:
        self._session = session
        self._driver = driver
        self._refuses = refuses
        self.captured: dict[int, DeviceBinding] = {}
        self.get_inputs = session.get_inputs

    def io_binding(self) -> DeviceBinding:
        return DeviceBinding(self._session.io_binding())

    def run_with_iobinding(self, binding: DeviceBinding, options: Any) -> None:
        graph = int(options.get_run_config_entry(GRAPH))
        if graph in self.captured:
            self._driver.enqueue(lambda: self._session.run_with_iobinding(self.captured[graph].binding, options))
            return
        self._driver.flush()
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        if graph == NOT_CAPTURED:
            self._session.run_with_iobinding(binding.binding, options)
            return
        if self._refuses(len(self.captured)):
            raise RuntimeError("operation not permitted when stream is capturing")
        binding.freeze()
        for _ in range(RUNS_OF_A_CAPTURE):
            self._session.run_with_iobinding(binding.binding, options)
        self.captured[graph] = binding


class DeviceBinding:
    """An IOBinding whose scalars can be frozen."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._scalars: dict[str, tuple[Any, ...]] = {}
        self._frozen: dict[str, np.ndarray] = {}

    def bind_input(self, name: str, *place: Any) -> None:
        assert not self._frozen, "a captured run reads no scalars"
        if not place[3]:
            self._scalars[name] = place
        self.binding.bind_input(name, *place)

    def bind_output(self, name: str, *place: Any) -> None:
        self.binding.bind_output(name, *place)

    def freeze(self) -> None:
        """Replace the scalars by their present values."""
        for name, (device, number, dtype, shape, address) in self._scalars.items():
            size = np.dtype(dtype).itemsize
            value = np.frombuffer(ctypes.string_at(address, size), dtype).copy()
            self._frozen[name] = value
            self.binding.bind_input(name, device, number, dtype, shape, int(value.ctypes.data))
