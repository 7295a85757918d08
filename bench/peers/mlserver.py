"""MLServer with its HuggingFace runtime: its packages, its settings, and the server's process.

What of a checkpoint it can read is mlserver_files.py's, what it is asked mlserver_client.py's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.errors import OpenFailed
from bench.peers.cases import Wanted
from bench.peers.mlserver_files import readable, write
from bench.peers.model import Reading
from bench.peers.packages import Packages

# What its environment would resolve to, without what hfx's has in a version that fits, and without TensorFlow.
PINS = (
    "mlserver==1.7.1", "mlserver-huggingface==1.7.1", "transformers==4.41.2", "optimum==1.20.0", "tokenizers==0.19.1",
    "huggingface_hub==0.36.2", "fastapi==0.115.14", "starlette==0.46.2", "starlette_exporter==0.24.0",
    "uvicorn==0.54.0", "uvloop==0.23.0", "pydantic==2.14.3", "pydantic_core==2.50.4", "pydantic-settings==2.16.3",
    "typing-inspection==0.4.5", "annotated-types==0.8.0", "python-dotenv==1.2.4", "python-multipart==0.0.34",
    "python-rapidjson==1.25", "orjson==3.13.0", "click==8.5.1", "aiofiles==25.1.0", "aiokafka==0.14.0",
    "async-timeout==5.0.1", "prometheus_client==0.26.0", "py-grpc-prometheus==0.8.0", "geventhttpclient==2.6.1",
    "gevent==26.9.0", "greenlet==3.3.2", "brotli==1.2.1", "zope.event==6.2", "zope.interface==8.7", "wrapt==2.5.2",
    "asgiref==3.13.0", "googleapis-common-protos==1.76.0", "importlib_resources==6.5.2", "opentelemetry-api==1.45.2",
    "opentelemetry-sdk==1.45.2", "opentelemetry-proto==1.45.2", "opentelemetry-exporter-otlp-common==0.66b2",
    "opentelemetry-exporter-otlp-proto-common==1.45.2", "opentelemetry-exporter-otlp-proto-grpc==1.45.2",
    "opentelemetry-instrumentation==0.66b2", "opentelemetry-instrumentation-asgi==0.66b2",
    "opentelemetry-instrumentation-fastapi==0.66b2", "opentelemetry-instrumentation-grpc==0.66b2",
    "opentelemetry-semantic-conventions==0.66b2", "opentelemetry-util-http==0.66b2", "pillow==13.0.0",
    "coloredlogs==15.0.1", "humanfriendly==10.0", "datasets==5.0.1", "dill==0.4.1", "multiprocess==0.70.19",
    "xxhash==4.1.0", "pandas==3.0.6", "pyarrow==26.0.1", "python-dateutil==4.0.0", "tzdata==2026.6", "six==1.17.0",
    "sentencepiece==0.2.3", "evaluate==0.4.6",
)  # fmt: skip
# optimum 1.20 imports private names of a module that torch no longer has; they are for exports.
SHIM = """import sys
import types

module = types.ModuleType("torch.onnx.symbolic_opset14")
module.__getattr__ = lambda name: None
sys.modules[module.__name__] = module
"""
NAME = "model"
PATH = f"/v2/models/{NAME}"
BATCH = 128
START_SECONDS, LONGEST_SECONDS = 120.0, 3600
COMMAND = "from mlserver.cli.main import main; main()"


def _finish(fetched: Path) -> None:
    (fetched / "sitecustomize.py").write_text(SHIM, encoding="utf-8")
    common = fetched / "mlserver_huggingface" / "common.py"  # TensorFlow is for models that we don't have
    common.write_text(common.read_text(encoding="utf-8").replace("import tensorflow as tf", "tf = None"))


PACKAGES = Packages("mlserver", PINS, _finish)


@dataclass(frozen=True)
class Server:
    """A server that is ready at HOST:PORT."""

    address: str
    pid: int


@contextmanager
def served(
    checkpoint: Path, reading: Reading, wanted: Wanted | None, precision: str, threads: int, patience: float
) -> Iterator[Server]:
    """A server of the checkpoint in which every answer has exactly `wanted` tokens.

    A request waits up to `patience` seconds for others to be answered with. Raises OpenFailed, FetchFailed.
    """
    fetched = PACKAGES.fetch()
    with TemporaryDirectory(prefix="hfx-mlserver-") as name:
        folder = Path(name)
        readable(checkpoint, folder / "checkpoint", wanted, precision)
        ports = _free_ports(3)
        _write_settings(folder, reading.task, ports, threads, patience)
        with _process(fetched, folder, ports[0]) as pid:
            yield Server(f"127.0.0.1:{ports[0]}", pid)


def _write_settings(folder: Path, task: str, ports: list[int], threads: int, patience: float) -> None:
    http, grpc, metrics = ports
    extra = {
        "task": task,
        "pretrained_model": str(folder / "checkpoint"),
        "framework": "pt",
        "intra_op_threads": threads,
        "model_kwargs": {"torch_dtype": "auto"},  # that of config.json
    }
    model = {
        "name": NAME,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": BATCH,
        "max_batch_time": patience,
        "parameters": {"extra": extra},
    }
    server = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics, "parallel_workers": 0}
    (folder / NAME).mkdir()
    write(folder / NAME / "model-settings.json", model)
    write(folder / "settings.json", server)


@contextmanager
def _process(fetched: Path, folder: Path, port: int) -> Iterator[int]:
    offline = {"TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["timeout", str(LONGEST_SECONDS), sys.executable, "-c", COMMAND, "start", str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for whoever asks
            env={**os.environ, **offline, "PYTHONPATH": str(fetched), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}{PATH}/ready", folder / "log")
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    lines = log.read_text(errors="replace").strip().splitlines()
    what = "ended" if process.poll() is not None else f"was not ready after {START_SECONDS:.0f} s"
    raise OpenFailed(f"MLServer {what}: {lines[-1].strip() if lines else 'it said nothing'}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def child(process: int) -> int:
    """The server itself: `timeout`, which would end it if nobody did, is its parent."""
    import psutil

    found = psutil.Process(process).children()
    return int(found[0].pid) if found else process


def processor_seconds(process: int) -> float:
    """What the server has used of a processor since it started."""
    import psutil

    times = psutil.Process(child(process)).cpu_times()
    return float(times.user + times.system)
