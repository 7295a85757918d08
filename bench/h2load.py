"""h2load (Debian: nghttp2-client) as a load generator of gRPC, for a tenth of the processor time of one in Python.

It knows no gRPC status, so answers are counted by the server, and the quickest requests are taken for the refused ones:
an overloaded server refuses within milliseconds, and answers after seconds.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tritonclient.grpc import service_pb2

from hfx.errors import LoadFailed
from hfx.names import TEXT_INPUT
from hfx.perf.load import Closed, Open
from hfx.perf.loadgen.log import percentile
from hfx.perf.server.metrics import STEPS, counters, read
from hfx.triton import EmbeddedServer

CONNECTIONS, STREAMS = 16, 2000  # of an open load: a connection sends a whole number of requests a second
METHOD = "inference.GRPCInferenceService/ModelInfer"
NO_SETTINGS: Mapping[str, int] = MappingProxyType({})
ANSWERED = "nv_inference_request_success"  # of a generator it counts what the relay refuses, too: there COMPLETED
UPDATED_SECONDS = 0.5  # until a generator's counters are up to date


def is_installed() -> bool:
    """Whether h2load is on PATH."""
    return shutil.which("h2load") is not None


def run(
    server: EmbeddedServer,
    model: str,
    text: str,
    plan: Closed | Open,
    seconds: float,
    deadline: float,
    settings: Mapping[str, int] = NO_SETTINGS,
    answered_by: str = ANSWERED,
) -> dict[str, float | None]:
    """`text` with INT32 `settings` again and again for `seconds`, each request with a deadline of so many seconds.

    `answered_by` is the counter of the server that tells the answers. Raises LoadFailed.
    Answers a second are those of the whole run, with its end, in which what waits is still answered.
    """
    if isinstance(plan, Closed):
        options = ["-c1", f"-m{plan.callers}", "-D", f"{seconds:.0f}"]
    else:
        rate = round(plan.rate / CONNECTIONS)
        options = [f"-c{CONNECTIONS}", f"-m{STREAMS}", f"--rps={rate}", "-n", str(round(CONNECTIONS * rate * seconds))]
    with tempfile.TemporaryDirectory() as folder:
        request, log = Path(folder) / "request", Path(folder) / "log"
        request.write_bytes(_frame(model, text, settings))
        before, began = read(server.metrics_url), time.perf_counter()
        command = ["h2load", *options, "-H", "content-type: application/grpc", "-H", "te: trailers",
                   "-H", f"grpc-timeout: {deadline:.0f}S", "-d", str(request), f"--log-file={log}",
                   f"http://{server.grpc_url}/{METHOD}"]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 60, check=False)
        took = time.perf_counter() - began
        time.sleep(UPDATED_SECONDS)
        grown = counters(before, read(server.metrics_url), [model])
        if ended.returncode or not log.exists():
            raise LoadFailed(f"h2load failed: {ended.stderr.strip()}", "Start it by hand: it is a program of its own.")
        waits = sorted(int(line.split("\t")[2]) / 1e3 for line in log.read_text().splitlines())
    answered = grown.get(answered_by, 0.0)
    refused = waits[: max(0, len(waits) - round(answered))]
    late = sum(wait >= 1e3 * deadline for wait in waits)
    return {
        "answers/s": answered / took,
        "steps/s": grown.get(STEPS, 0.0) / took,
        "refused/s": len(refused) / took,
        "late": float(late),
        "p99 ms": percentile(waits[len(refused) :], 0.99),
        "refused p99 ms": percentile(refused, 0.99),
    }


def _frame(model: str, text: str, settings: Mapping[str, int]) -> bytes:
    content = text.encode()
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=TEXT_INPUT, datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(struct.pack("<I", len(content)) + content)
    for name, value in settings.items():
        request.inputs.add(name=name, datatype="INT32", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<i", value))
    message = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(message)) + message
