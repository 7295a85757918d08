"""Models of each kind with the same weights on every machine, and the bytes of their answers.

Weights are uniform numbers with 12 bits from numpy's integers, without a logarithm or sine of any library. `python -m
tests.rigs.checkpoints.same_bits FOLDER COUNT` prints the digest of COUNT answers of each model in FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.native import libraries
from hfx.native.build import LIBRARY

MODEL, ENGINE = "model.onnx", "engine.json"
WIDEST, ROWS = 40, 8
# Kind -> model type, task, pooling, changes of the config.
ENCODERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "labels-distilbert": ("distilbert", "text-classification", "", {"n_heads": 2}),
    "tokens-bert": ("bert", "token-classification", "", {"num_attention_heads": 2}),
    "labels-roberta": ("roberta", "text-classification", "", {"num_attention_heads": 2}),
    "embedding-mpnet": ("mpnet", "feature-extraction", "mean", {"num_attention_heads": 2}),
    "labels-modernbert": ("modernbert", "text-classification", "", {"num_attention_heads": 2}),
    "embedding-deberta": (
        "deberta-v2",
        "feature-extraction",
        "cls",
        {"num_attention_heads": 2, "conv_kernel_size": 0},
    ),
}
HEADS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gemma": {},
    "llama": {},
    "mistral": {},
    "neox": {},
    "smollm": {},
    "opt": {"num_attention_heads": 3},
    "qwen3": {},
    "bart": {"encoder_attention_heads": 3},
    "t5": {"d_kv": 16, "num_heads": 3},
}
INT4 = (
    "-int4"  # behind the kind of a generator: its products in int4, as `hfx export --precision int4` tries them first
)
KINDS = (*ENCODERS, *HEADS, *(kind + INT4 for kind in ("gpt2", "llama", "bart", "t5")))
# Tables in their files are computed where the model is exported: sines, and products of DeBERTa's positions.
EXPORTED = ("labels-modernbert", "embedding-deberta")


def write(kind: str, folder: Path, library: Path) -> None:
    """Write the native graphs of a kind, and the operators' libraries: `library`, and those beside it."""
    folder.mkdir(parents=True)
    if kind in ENCODERS:
        import onnx

        onnx.save(encoder(kind), folder / MODEL)
        for path in libraries(library.parent).values():
            (folder / path.name).write_bytes(path.read_bytes())
    else:
        _write_generator(kind, folder, library)


def write_all(root: Path, library: Path) -> Path:
    """Write the models of all kinds into `root`, and return it."""
    for kind in KINDS:
        write(kind, root / kind, library)
    return root


def encoder(kind: str) -> Any:
    """Return the graph of an encoder in int8."""
    from hfx.exporter.encoder.checkpoint.pooling import Layer, Pooling, make_pooler
    from hfx.exporter.encoder.graph.build import build_graph
    from hfx.exporter.encoder.kinds import usual_kind
    from hfx.exporter.quantize.encoder import row_wise
    from tests.rigs.checkpoints import tiny_encoders

    model_type, name, mode, changes = ENCODERS[kind]
    task = usual_kind(name)
    pooling = make_pooler(Pooling((mode,), (Layer("Normalize"),))) if mode else None  # type: ignore[arg-type]
    model = _weighted(tiny_encoders.build(model_type, task.auto_class, **changes))
    return row_wise(build_graph(model, task, tiny_encoders.PAD, pooling)).model


def _write_generator(kind: str, folder: Path, library: Path) -> None:
    """Write a generator without balancing, whose factors are float products by numpy."""
    from hfx.exporter.families import find_family
    from hfx.exporter.families.family import resolve_config
    from hfx.exporter.generation.engine_folder import write_net
    from hfx.exporter.quantize.generator import FORMATS_TRIED
    from hfx.exporter.tensors import CheckpointTensors
    from tests.rigs.checkpoints import tiny_generators

    name = kind.removesuffix(INT4)
    checkpoint = tiny_generators.save(folder / "checkpoint", _weighted(tiny_generators.build(name, **HEADS[name])))
    net = find_family(checkpoint).read(resolve_config(checkpoint), CheckpointTensors(checkpoint))
    if kind == "gpt2":
        net = replace(net, head=replace(net.head, loud=(3, 17)))
    write_net(net, folder, FORMATS_TRIED["int4" if kind.endswith(INT4) else "int8"][0], 127, library)


def _weighted(model: Any) -> Any:
    import torch

    rng = np.random.default_rng(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            values = rng.integers(-2048, 2049, tuple(parameter.shape)).astype(np.float32) / np.float32(2048)
            if parameter.ndim > 1:
                values *= np.float32(0.5)
            elif "norm" in _.lower() or "ln_" in _:
                values = np.float32(1) + values * np.float32(0.25)
            parameter.copy_(torch.from_numpy(values))
    return model


def digest(folder: Path, kind: str, count: int, seed: int = 0) -> str:
    """Return the SHA-256 of the bytes of `count` answers."""
    found = (_encoded if kind in ENCODERS else _generated)(folder / kind, kind, count, np.random.default_rng(seed))
    return hashlib.sha256(found).hexdigest()


def _encoded(folder: Path, kind: str, count: int, rng: np.random.Generator) -> bytes:
    """Return the answers to texts in batches of 8; scores of labels come from the served softmax."""
    import onnxruntime

    from hfx.python_backends.tasks.text_classification import softmax

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(folder / LIBRARY))
    session = onnxruntime.InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])
    inputs, found = {each.name: each.shape for each in session.get_inputs()}, []
    for _ in range(-(-count // ROWS)):
        width = int(rng.integers(1, WIDEST + 1))
        mask = (np.arange(width) < rng.integers(1, width + 1, (ROWS, 1))).astype(np.int32)
        feed = {
            names.INPUT_IDS: rng.integers(5, 120, ROWS * width).astype(np.int32),
            names.ATTENTION_MASK: mask.reshape(-1),
            names.TOKEN_TYPE_IDS: np.zeros(ROWS * width, np.int32),
            names.ITEM_SHAPE: np.array([[1, width][-inputs[names.ITEM_SHAPE][1] :]] * ROWS, np.int32),
        }
        (out,) = session.run(None, {name: array for name, array in feed.items() if name in inputs})
        assert np.isfinite(out).all()
        found.append(out.tobytes() if "embedding" in kind else out.tobytes() + softmax(out).tobytes())
    return b"".join(found)


def _generated(folder: Path, kind: str, count: int, rng: np.random.Generator) -> bytes:
    """Return ids and log-probabilities; every fourth request has beams, every other fourth is sampled."""
    from hfx.python_backends.engine.engine import Engine
    from hfx.python_backends.engine.request import Request, Settings

    ways: list[dict[str, Any]] = [{}, {"num_beams": 3}, {}, {"do_sample": True, "seed": 1}]
    start = (2,) if kind.removesuffix(INT4) in ("bart", "t5") else ()
    requests = []
    for at in range(count):
        prompt = tuple(rng.integers(3, 110, int(rng.integers(1, WIDEST + 1))).tolist())
        settings: Any = {"max_tokens": 8, "log_probs": True, "decoder_prompt": start, **ways[at % len(ways)]}
        requests.append(Request(prompt, Settings(**settings)))
    found: list[NDArray[Any]] = []
    with Engine.open(folder, slots=16, max_queue=count, threads=2, beams=(1, 3)) as engine:
        assert engine.runtime == "native"
        for handle in [engine.submit(each) for each in requests]:
            for event in handle.result(300):
                found += [np.array(event.ids, np.int64), np.array(event.log_probs, np.float64)]
    return b"".join(each.tobytes() for each in found)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    print(json.dumps({kind: digest(root, kind, int(sys.argv[2])) for kind in KINDS}))
