"""optimum on ONNX Runtime: its exported graphs, fp32 or int8 by onnxruntime's quantize_dynamic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.packages import TRANSFORMERS_4, Packages
from bench.peers import Model
from bench.peers.transformers_api import Classifying, Embedding, Generating, wrapped

PACKAGES = (Packages("optimum", ("optimum-onnx==0.1.0", "optimum==2.1.0")), TRANSFORMERS_4)
FILES = ("encoder_model", "decoder_model", "decoder_with_past_model", "model")


def convert(model: Model, folder: str, precision: str, variant: str) -> None:
    """Export and quantize. Decoders with and without past stay apart: a merged one is not quantized inside its If."""
    import optimum.onnxruntime

    merged = {"use_merged": False} if model.kind == "encoder-decoder" else {}
    kind = getattr(optimum.onnxruntime, f"ORT{model.auto_class}")
    kind.from_pretrained(model.folder, export=True, **merged).save_pretrained(folder)
    if precision == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        for path in (Path(folder) / f"{name}.onnx" for name in FILES):
            if path.is_file():
                quantize_dynamic(path, path.with_name(f"{path.stem}_quantized.onnx"), weight_type=QuantType.QInt8)


def open_net(
    model: Model, folder: str, precision: str, threads: int, variant: str
) -> Generating | Classifying | Embedding:
    """The converted files, with optimum's default of IOBinding."""
    import onnxruntime
    import optimum.onnxruntime

    suffix = "_quantized" if precision == "int8" else ""
    files: dict[str, Any] = {"file_name": f"model{suffix}.onnx"}
    if model.kind == "encoder-decoder":
        files = {
            "encoder_file_name": f"encoder_model{suffix}.onnx",
            "decoder_file_name": f"decoder_model{suffix}.onnx",
            "decoder_with_past_file_name": f"decoder_with_past_model{suffix}.onnx",
        }
        files |= {} if suffix else {"use_merged": False}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    kind = getattr(optimum.onnxruntime, f"ORT{model.auto_class}")
    return wrapped(kind.from_pretrained(folder, session_options=options, **files), model)
