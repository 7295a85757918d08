"""Sessions on a GPU, the CUDA graphs that they capture, and the memory that is bound to their runs.

All runs are in the stream of a `Device`. ONNX Runtime captures the first run of a binding, and later runs replay it.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any, Union

from ..errors import ModelDamaged, ProviderMissing
from .device_memory import CAPTURING, Device, DeviceArray, DeviceCounts, Mirror
from .sessions import (
    PROVIDERS,
    Bindables,
    Binding,
    HostNet,
    SessionSettings,
    host_place,
    input_shapes,
    load_onnxruntime,
    new_session,
    session_options,
)

LOG = logging.getLogger(__name__)
CAPTURE, GRAPH = "enable_cuda_graph", "gpu_graph_id"  # options of a provider and of a run
NOT_CAPTURED = -1  # the number of runs without a captured graph
NO_ROOM = ("out of memory", "Failed to allocate memory")  # words of the messages of CUDA and of ONNX Runtime
ASSIGNMENT = "session.record_ep_graph_assignment_info"  # a session's option
SHOWN = 3  # nodes that a log line names


def open_on_gpu(model: Path, settings: SessionSettings, **options: str) -> Any:
    """Open an onnxruntime.InferenceSession of a file on the GPU. `options` are further options of the provider.

    Raises ModelDamaged, or ProviderMissing if the GPU has no room or the provider could not start.
    """
    provider, of_session = PROVIDERS[settings.provider], session_options(settings)
    of_session.add_session_config_entry(ASSIGNMENT, "1")
    # Memory grows by what a run lacks. By default it is doubled, which takes room from other models on the GPU.
    own = {"device_id": str(settings.device_id), "arena_extend_strategy": "kSameAsRequested", **options}
    try:
        session = new_session(model, of_session, [(provider, own), PROVIDERS["CPU"]])
    except ModelDamaged as error:
        if any(words in str(error.__cause__) for words in NO_ROOM):  # ONNX Runtime's errors have no codes
            raise ProviderMissing(
                f"GPU {settings.device_id} has no room for the {model.stat().st_size:,} bytes of {model}: "
                f"{error.__cause__}",
                "End other programs on it",
            ) from error.__cause__
        raise
    # A provider whose libraries can't be loaded is dropped by ONNX Runtime with no more than a log line.
    if provider not in session.get_providers():
        raise ProviderMissing(
            f"onnxruntime could not start {provider}: see its log", "Check the GPU's driver and libraries"
        )
    return session


def open_captured(model: Path, settings: SessionSettings, device: Device, counts: DeviceCounts) -> CapturedNet:
    """Open a session that runs in the stream of `device` and, if the file allows it, captures CUDA graphs.

    If it captures none, the log says why. Raises ModelDamaged or ProviderMissing.
    """
    stream = str(device.copier.stream)
    with CAPTURING:
        try:
            session = open_on_gpu(model, settings, user_compute_stream=stream, **{CAPTURE: "1"})
            return CapturedNet(session, model.name, device, counts)
        except ModelDamaged as error:
            refused = str(error.__cause__)
        session = open_on_gpu(model, settings, user_compute_stream=stream)
    net = CapturedNet(session, model.name, device, counts)
    net.refuse(refused + nodes_elsewhere(session, PROVIDERS[settings.provider]))
    return net


def nodes_elsewhere(session: Any, provider: str) -> str:
    """Return words about the nodes of a session that `provider` does not run; none if ONNX Runtime can't tell."""
    assigned: Any = getattr(session, "get_provider_graph_assignment_info", tuple)()
    nodes = [node for part in assigned if part.ep_name != provider for node in part.get_nodes()]
    listed = ", ".join(f"{node.name} ({node.op_type})" for node in nodes[:SHOWN])
    return f" ({len(nodes)} nodes run on the CPU: {listed})" if nodes else ""


class CapturedNet:
    """An open graph of the file `name` on `device`, and the numbers of its CUDA graphs.

    If its runs are not captured, `counts` have the reason.
    """

    def __init__(self, session: Any, name: str, device: Device, counts: DeviceCounts) -> None:
        self.session, self.inputs = session, input_shapes(session)
        self._name, self._device, self._counts = name, device, counts
        self._numbers = itertools.count(1)
        self._is_refused = False

    def bind(self, inputs: Bindables, outputs: Bindables, captured: bool = False) -> DeviceBinding:
        """Bind memory on the host and on the device to a run, which is captured if that is possible."""
        number = next(self._numbers) if captured and not self._is_refused else NOT_CAPTURED
        return DeviceBinding(self, self._device, inputs, outputs, number)

    def refuse(self, reason: str) -> None:
        """Capture no further runs, and log why."""
        if not self._is_refused:
            LOG.warning("%s is not captured as CUDA graphs, so its operators are started one by one: %s",
                        self._name, reason)  # fmt: skip
        self._is_refused = True
        self._counts.capture_refusal = self._counts.capture_refusal or reason


class DeviceBinding:
    """Memory that is bound to a session on `device` once, like the arrays of a Binding.

    Arrays on the host have copies on the device. A run brings all inputs there in one copy, and all outputs back in
    another, through page-locked memory; then it waits for the device. Inputs are always copied, because the positions
    change in each step. Scalars have no copy, as operators read them on the host.

    If `number` is not NOT_CAPTURED, the first run is captured, and later runs replay it, with the same values of the
    scalars. ONNX Runtime carries out a run that it captures several times, so outputs must not be the memory of inputs
    on a device, unless it is the same each time, as a KV cache is.
    """

    def __init__(self, net: CapturedNet, device: Device, inputs: Bindables, outputs: Bindables, number: int) -> None:
        self._net, self._device = net, device
        self._binding = net.session.io_binding()
        self._keep = inputs, outputs
        self._number = number
        self._is_first = True
        self._options = _run_options(number)
        self._scalars = {name: memory for name, memory in inputs.items() if not memory.shape}
        self._sent = _mirror(device, {name: memory for name, memory in inputs.items() if memory.shape})
        self._received = _mirror(device, outputs)
        self._bind_scalars()
        for name, memory in {**inputs, **self._sent.copies}.items():
            if memory.shape:
                self._binding.bind_input(name, *memory.place)  # type: ignore[union-attr]
        for name, memory in {**outputs, **self._received.copies}.items():
            self._binding.bind_output(name, *memory.place)  # type: ignore[union-attr]

    @property
    def captured(self) -> bool:
        """Whether runs replay a captured graph."""
        return self._number != NOT_CAPTURED

    def run(self) -> None:
        """Run the graph once. Raises what ONNX Runtime raises."""
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Begin a run, of which the device may carry out a part after this call. `finish` or `drop` must follow."""
        for name, array in self._sent.arrays.items():
            array[...] = self._keep[0][name]
        self._sent.upload()
        if self.captured and self._is_first:
            self._capture()
        else:
            self._start()
        self._is_first = False
        self._received.download()

    def drop(self) -> None:
        """Wait for the end of the run that was begun, and leave outputs on the host as they are."""
        self._device.copier.synchronize()

    def finish(self) -> None:
        """Wait for the outputs of the run that was begun."""
        self.drop()
        for name, array in self._received.arrays.items():
            self._keep[1][name][...] = array  # type: ignore[index]

    def _start(self) -> None:
        # A device that reads a scalar has a copy from the time of the binding, so each run binds scalars again.
        if not self.captured:
            self._bind_scalars()
        self._net.session.run_with_iobinding(self._binding, self._options)

    def _bind_scalars(self) -> None:
        for name, scalar in self._scalars.items():
            self._binding.bind_input(name, *host_place(name, scalar))

    def _capture(self) -> None:
        """Run the graph for the first time. If it can't be captured, it is never captured."""
        try:
            with CAPTURING:
                self._start()
        except Exception as error:  # its exceptions have no common class below Exception
            self._number, self._options = NOT_CAPTURED, _run_options(NOT_CAPTURED)
            self._start()  # if this fails as well, the cause was not the capture
            self._net.refuse(str(error))


# A net and its bound runs, on the host or on a GPU.
Net = Union[HostNet, CapturedNet]
BoundRun = Union[Binding, DeviceBinding]


def _mirror(device: Device, memory: Bindables) -> Mirror:
    """Return the mirror of the arrays on the host."""
    on_host = {name: array for name, array in memory.items() if not isinstance(array, DeviceArray)}
    return Mirror(device, {name: (array.shape, array.dtype) for name, array in on_host.items()})


def _run_options(number: int) -> Any:
    options = load_onnxruntime().RunOptions()
    options.add_run_config_entry(GRAPH, str(number))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
