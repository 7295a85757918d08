"""The peer of the seed load: MLServer's HuggingFace runtime on the same weights, fetched and run apart from hfx.

Owns its packages, what its model needs to be read by them, and its process. It must not know what is measured.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cache import made, packages
from bench.generation_cases import open_model
from bench.processes import OpenFailed, Prepare, Resident
from bench.serve_answers import Piece
from bench.serve_cases import SEED_TOKENS, Ask
from bench.serve_doors import PostDoor, driven
from bench.serve_model import CHECKPOINT, NAME, TOKENIZER, with_words

MLSERVER = "MLServer, HuggingFace runtime"
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
BATCH, BATCH_SECONDS = 128, 0.1
START_SECONDS, LONGEST_SECONDS = 60.0, 900
COMMAND = "from mlserver.cli.main import main; main()"
PATH = f"/v2/models/{NAME}"


@contextmanager
def opened(tiny: bool) -> Iterator[Resident]:
    """A client of a server that is ready; answers (MLSERVER, load) with Measured. Raises OpenFailed, FetchFailed."""
    fetched = packages("mlserver", PINS, _finish)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hfx-bench-")))
        ports = _free_ports(3)
        _write_settings(folder, _checkpoint(tiny), ports)
        stack.enter_context(_process(fetched, folder, ports[0]))
        yield stack.enter_context(Resident(open_client, address=f"127.0.0.1:{ports[0]}"))


def open_client(address: str) -> Prepare:
    """A client of the server at HOST:PORT."""
    return driven({MLSERVER: PostDoor(address, f"{PATH}/infer", _request, _answer)})


def _request(ask: Ask) -> bytes:
    # Of this name it makes batches; how many tokens are written stands in the model's own settings.
    tensor = {"name": "array_inputs", "shape": [1], "datatype": "BYTES", "data": [ask.text]}
    return json.dumps({"inputs": [tensor]}).encode()


def _answer(body: bytes) -> Piece:
    found = json.loads(json.loads(body)["outputs"][0]["data"][0])
    return Piece(found[0]["generated_text"], "length", 0, SEED_TOKENS)


def _finish(fetched: Path) -> None:
    (fetched / "sitecustomize.py").write_text(SHIM, encoding="utf-8")
    common = fetched / "mlserver_huggingface" / "common.py"  # TensorFlow is for models that we don't have
    common.write_text(common.read_text(encoding="utf-8").replace("import tensorflow as tf", "tf = None"))


def _checkpoint(tiny: bool) -> Path:
    source = Path(open_model(CHECKPOINT, tiny).checkpoint)
    return made(f"models/mlserver-bf16-{source.parent.name}-{CHECKPOINT}", lambda staging: _readable(source, staging))


def _readable(source: Path, staging: Path) -> None:
    """A copy that tokenizers 0.19 can read, and that writes exactly SEED_TOKENS."""
    with_words(source, staging / "model")
    for path in (staging / "model").iterdir():
        path.rename(staging / path.name)
    (staging / "model").rmdir()
    last = json.loads((staging / "config.json").read_text())["vocab_size"] - 1
    ids = {"eos_token_id": last, "pad_token_id": last, "bos_token_id": last}  # id 0 is taken for none
    lengths = {"max_new_tokens": SEED_TOKENS, "min_new_tokens": SEED_TOKENS, "do_sample": False}
    _change(staging / "config.json", {**ids, "torch_dtype": "bfloat16"})  # three times as fast as float32 here
    _change(staging / "generation_config.json", {**ids, **lengths})
    _change(staging / "tokenizer_config.json", {"pad_token": "<|endoftext|>"})
    tokenizer = json.loads((staging / TOKENIZER).read_text(encoding="utf-8"))
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    (staging / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _change(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def _write_settings(folder: Path, checkpoint: Path, ports: list[int]) -> None:
    http, grpc, metrics = ports
    kwargs = {"torch_dtype": "auto"}  # that of config.json
    extra = {"task": "text-generation", "pretrained_model": str(checkpoint), "framework": "pt", "model_kwargs": kwargs}
    model = {
        "name": NAME,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": BATCH,
        "max_batch_time": BATCH_SECONDS,
        "parameters": {"extra": extra},
    }
    server = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics, "parallel_workers": 0}
    (folder / NAME).mkdir()
    (folder / NAME / "model-settings.json").write_text(json.dumps(model))
    (folder / "settings.json").write_text(json.dumps(server))


@contextmanager
def _process(fetched: Path, folder: Path, port: int) -> Iterator[None]:
    offline = {"TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["timeout", str(LONGEST_SECONDS), sys.executable, "-c", COMMAND, "start", str(folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, **offline, "PYTHONPATH": str(fetched), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}{PATH}/ready", folder / "log")
        yield
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
    raise OpenFailed(f"MLServer was not ready after {START_SECONDS:.0f} s: {lines[-1] if lines else 'it said nothing'}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
