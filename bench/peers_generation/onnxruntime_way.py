"""optimum on ONNX Runtime: its exported graphs, weights int8 by onnxruntime's quantize_dynamic."""

from __future__ import annotations

from pathlib import Path

from bench.generation_cases import THREADS, Model
from bench.peers_generation.generate import model_class, prepared
from bench.processes import Prepare

FILES = ("encoder_model", "decoder_model", "decoder_with_past_model", "model")


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """Export and quantize. Decoders with and without past stay apart: a merged one is not quantized inside its If."""
    import optimum.onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    merged = {} if model.start is None else {"use_merged": False}
    kind = getattr(optimum.onnxruntime, model_class(model, "ORT"))
    kind.from_pretrained(model.checkpoint, export=True, **merged).save_pretrained(folder)
    for path in (Path(folder) / f"{name}.onnx" for name in FILES):
        if path.is_file():
            quantize_dynamic(path, path.with_name(f"{path.stem}_quantized.onnx"), weight_type=QuantType.QInt8)


def finish(folder: Path) -> None:
    """Drop the float32 files, which are most of the folder."""
    for path in folder.glob("*.onnx*"):
        if "_quantized" not in path.name:
            path.unlink()


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """The quantized files, with optimum's IOBinding default."""
    import onnxruntime
    import optimum.onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    kind = getattr(optimum.onnxruntime, model_class(model, "ORT"))
    files = {"file_name": "model_quantized.onnx"}
    if model.start is not None:
        files = {
            "encoder_file_name": "encoder_model_quantized.onnx",
            "decoder_file_name": "decoder_model_quantized.onnx",
            "decoder_with_past_file_name": "decoder_with_past_model_quantized.onnx",
        }
    return prepared(kind.from_pretrained(folder, session_options=options, **files), model)
