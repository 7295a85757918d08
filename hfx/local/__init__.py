"""Published models in this process: the code and the files that Triton serves, without a server.

`encoder.LocalModel` and `generator.LocalGenerator` are opened from a repository; the parity gate, `hfx verify` and
`hfx infer --local` run them. This package does not depend on torch, or on how a model was exported.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from google.protobuf.json_format import MessageToDict
from numpy.typing import NDArray

from hfx import native
from hfx.errors import ModelMissing, NativeMissing
from hfx.metadata import check_text
from hfx.repository import parse_config
from hfx.repository.config_pbtxt import config_path

Device = Literal["cpu", "gpu"]
Kind = Literal["CPU", "GPU"]
THREADS = "intra_op_thread_count"  # a parameter in the configuration of a net or engine
Tensors = dict[str, NDArray[Any]]
Request = Mapping[str, Any]  # public input -> one row's value, or the list of its values: texts, numbers, booleans
Answer = dict[str, Any]  # public output -> one row's value
LOG = logging.getLogger(__name__)


def scalar_outputs(repository: Path, name: str) -> frozenset[str]:
    """Return the outputs of NAME with one value per row. In an answer they are single values, other outputs lists."""
    config = read_config(repository / name / "config.pbtxt")
    return frozenset(o["name"] for o in config["output"] if [int(d) for d in o["dims"]] == [1])


def plain_answer(tensors: Mapping[str, NDArray[Any]], scalars: frozenset[str]) -> Answer:
    """Return the first row of output tensors as plain values: texts, numbers, and lists of them."""
    return {name: _plain(value[0], name in scalars) for name, value in tensors.items()}


def as_tensors(request: Request) -> Tensors:
    """Return one row's values as tensors `[1, n]`, like Triton's. Raises UsageError for a value that is not a text.

    Lists of booleans and of numbers become tensors of these types.
    """
    tensors: Tensors = {}
    for name, value in request.items():
        values = list(value) if isinstance(value, list | tuple) else [value]
        if values and all(isinstance(each, bool) for each in values):
            tensors[name] = np.array([values], np.bool_)
        elif values and all(isinstance(each, int) for each in values):
            tensors[name] = np.array([values], np.int32)
        elif values and all(isinstance(each, float) for each in values):
            tensors[name] = np.array([values], np.float32)
        else:
            texts = [check_text(each, name).encode() for each in values]
            tensors[name] = np.array([texts], dtype=np.object_).reshape(1, len(texts))
    return tensors


def _plain(row: NDArray[Any], scalar: bool) -> Any:
    values = [v.decode() if isinstance(v, bytes) else v for v in row.tolist()]
    return values[0] if scalar else values


def device_config(folder: Path, device: Device) -> dict[str, Any]:
    """Read the configuration of a model folder that `--model-config-name=DEVICE` chooses. Raises ModelMissing."""
    return read_config(config_path(folder, device))


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.pbtxt as plain values under protobuf's names. Raises ModelMissing if there is no such file."""
    if not path.is_file():
        raise ModelMissing(
            f"There is no model {path.parent.name} in {path.parent.parent} ({path.name} is missing).",
            "`hfx list` shows what there is.",
        )
    config: dict[str, Any] = MessageToDict(
        parse_config(path.read_text(encoding="utf-8")), preserving_proto_field_name=True
    )
    return {"input": [], "output": [], "max_batch_size": 0, **config}


def is_foreign(library: Path, sha256: str) -> bool:
    """Return whether a model's library of native operators differs from this installation's in any byte.

    A foreign library is not loaded in this process, as it would be foreign code (a server does run the code of its
    models). A log line says that it is not used. For a library whose hash is not `sha256` the result is False, because
    opening the model refuses it.
    """
    try:
        found = library.read_bytes()
        if hashlib.sha256(found).hexdigest() != sha256 or found == native.library().read_bytes():
            return False
        reason = "is not the one of this hfx"
    except (NativeMissing, OSError) as error:
        reason = f"can't be compared with this installation's ({error})"
    LOG.warning("%s %s: ONNX Runtime runs the model. Fix: export it again", library, reason)
    return True
