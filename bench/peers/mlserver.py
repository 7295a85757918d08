"""MLServer with its HuggingFace runtime (torch): a server for decoders that gets the very load, over HTTP.

The length of answers stands in the model's own settings, as what a request says can't be put in a batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.child import PeerFailed
from bench.packages import Packages
from bench.peers import THREADS
from bench.peers.processes import free_ports, running

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
NAME, LABEL, PORTS = "model", "mlserver bf16", ("http_port", "grpc_port", "metrics_port")
BATCH, PATIENCE = 128, 0.1  # requests of a batch at most, and seconds in which they are gathered
COMMAND = "from mlserver.cli.main import main; main()"


def _finish(fetched: Path) -> None:
    (fetched / "sitecustomize.py").write_text(SHIM, encoding="utf-8")
    common = fetched / "mlserver_huggingface" / "common.py"  # TensorFlow is for models that we don't have
    common.write_text(common.read_text(encoding="utf-8").replace("import tensorflow as tf", "tf = None"))


MLSERVER = Packages("mlserver", PINS, _finish)


@contextmanager
def served(checkpoint: Path, new: int) -> Iterator[str]:
    """The URL that takes requests for exactly `new` tokens, greedy in bfloat16. Raises PeerFailed."""
    if MLSERVER.folder is None:
        raise PeerFailed("mlserver is not installed: `python -m bench.peers install mlserver` fetches it")
    with TemporaryDirectory(prefix="hfx-mlserver-") as name:
        folder = Path(name)
        _rewrite(checkpoint, folder / "checkpoint", new)
        ports = free_ports(len(PORTS))
        _settings(folder, ports)
        url = f"http://127.0.0.1:{ports[0]}/v2/models/{NAME}"
        offline = {"TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        paths = {"PYTHONPATH": str(MLSERVER.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with running(LABEL, [sys.executable, "-c", COMMAND, "start", str(folder)], f"{url}/ready", offline | paths):
            yield f"{url}/infer"


def body(text: str) -> dict[str, Any]:
    """The JSON of a request; of inputs of this name MLServer makes batches."""
    return {"inputs": [{"name": "array_inputs", "shape": [1], "datatype": "BYTES", "data": [text]}]}


def _rewrite(checkpoint: Path, target: Path, new: int) -> None:
    """The checkpoint by links, its small files such that transformers 4.41 and tokenizers 0.19 can read them."""
    target.mkdir()
    (target / "model.safetensors").symlink_to((checkpoint / "model.safetensors").resolve())
    config, tokenizer, settings = (
        json.loads((checkpoint / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("config", "tokenizer", "tokenizer_config")
    )
    last = config["vocab_size"] - 1  # an end of id 0 is taken for none; what is padded is masked
    ids = {"eos_token_id": last, "bos_token_id": last, "pad_token_id": last}
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    lengths = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    files = {
        "config": {**config, **ids, "torch_dtype": "bfloat16"},
        "generation_config": {**lengths, **ids},
        "tokenizer_config": {**settings, "pad_token": settings["eos_token"], "padding_side": "left"},
        "tokenizer": tokenizer,
    }
    for name, value in files.items():
        (target / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _settings(folder: Path, ports: list[int]) -> None:
    extra = {
        "task": "text-generation",
        "pretrained_model": str(folder / "checkpoint"),
        "framework": "pt",
        "intra_op_threads": THREADS,
        "model_kwargs": {"torch_dtype": "auto"},  # that of config.json
    }
    model = {
        "name": NAME,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": BATCH,
        "max_batch_time": PATIENCE,
        "parameters": {"extra": extra},
    }
    (folder / NAME).mkdir()
    (folder / NAME / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    server = {"host": "127.0.0.1", "parallel_workers": 0, **dict(zip(PORTS, ports, strict=True))}
    (folder / "settings.json").write_text(json.dumps(server), encoding="utf-8")
