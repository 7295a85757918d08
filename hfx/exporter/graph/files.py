"""Writing a graph to a file, checked; weights beside it where one protobuf can't hold them."""

from __future__ import annotations

from pathlib import Path

import onnx

from hfx.errors import CheckpointUnsupported

LARGEST_PROTOBUF = 1_900_000_000  # protobuf's limit is 2 GiB; names and shapes need some of it
SMALLEST_EXTERNAL = 1024


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write `model` to `path` (and `path`.data where it is too large for one file) and check it.

    Raises CheckpointUnsupported where onnx.checker refuses the graph.
    """
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=weights > LARGEST_PROTOBUF,
        location=path.name + ".data",
        size_threshold=SMALLEST_EXTERNAL,
    )
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise CheckpointUnsupported(f"The exported graph is not valid ONNX: {error}", "Please report this.") from error
