"""optimum on ONNX Runtime: its exported graphs, weights float32 or int8 by onnxruntime's quantize_dynamic."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.peers import packages
from bench.peers.classifying import Classifying
from bench.peers.decoding import Generating, model_class
from bench.peers.model import Model

PACKAGES = packages.Packages("optimum", ("optimum-onnx==0.1.0", "optimum==2.1.0"))
FILES = ("encoder_model", "decoder_model", "decoder_with_past_model", "model")
CLASSIFIER = "ORTModelForSequenceClassification"


def convert(model: Model, folder: str, fetched: str, precision: str) -> None:
    """Export and quantize. Decoders with and without past stay apart: a merged one is not quantized inside its If."""
    packages.use(fetched)
    merged = {} if model.start is None else {"use_merged": False}
    _export(model_class(model, "ORT"), model, folder, merged)
    if precision == "int8":
        _quantize(Path(folder) / f"{name}.onnx" for name in FILES)


def convert_classifier(model: Model, folder: str, fetched: str, precision: str) -> None:
    """Export and quantize."""
    packages.use(fetched)
    _export(CLASSIFIER, model, folder, {})
    if precision == "int8":
        _quantize([Path(folder) / "model.onnx"])


def finish(folder: Path) -> None:
    """Of a quantized model, drop the float32 files, which are most of the folder."""
    quantized = list(folder.glob("*_quantized.onnx"))
    for path in folder.glob("*.onnx*") if quantized else ():
        if "_quantized" not in path.name:
            path.unlink()


def open_net(model: Model, folder: str, fetched: str, precision: str, threads: int) -> Generating:
    """The converted files, with optimum's IOBinding default."""
    packages.use(fetched)
    suffix = _suffix(precision)
    files = {"file_name": f"model{suffix}.onnx"}
    if model.start is not None:
        files = {
            "encoder_file_name": f"encoder_model{suffix}.onnx",
            "decoder_file_name": f"decoder_model{suffix}.onnx",
            "decoder_with_past_file_name": f"decoder_with_past_model{suffix}.onnx",
        }
        if precision == "fp32":
            files["use_merged"] = False  # type: ignore[assignment]
    return Generating(_opened(model_class(model, "ORT"), folder, files, threads), model)


def open_classifier(model: Model, folder: str, fetched: str, precision: str, threads: int) -> Classifying:
    """The converted file."""
    packages.use(fetched)
    return Classifying(_opened(CLASSIFIER, folder, {"file_name": f"model{_suffix(precision)}.onnx"}, threads), model)


def _suffix(precision: str) -> str:
    return "_quantized" if precision == "int8" else ""


def _export(name: str, model: Model, folder: str, options: dict[str, Any]) -> None:
    import optimum.onnxruntime

    kind = getattr(optimum.onnxruntime, name)
    kind.from_pretrained(model.files, export=True, **options).save_pretrained(folder)


def _quantize(paths: Iterable[Path]) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for path in paths:
        if path.is_file():
            quantize_dynamic(path, path.with_name(f"{path.stem}_quantized.onnx"), weight_type=QuantType.QInt8)


def _opened(name: str, folder: str, files: dict[str, Any], threads: int) -> Any:
    import onnxruntime
    import optimum.onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return getattr(optimum.onnxruntime, name).from_pretrained(folder, session_options=options, **files)
