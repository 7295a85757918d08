"""`python -m bench.labelled`: entities of labels that a request names, beside the library gliner.

The checkpoint has the sizes of gliner_small-v2.1 and random weights. Each text has 128 tokens, and is read behind ten
labels. The library gets as many texts at once as hfx's server has callers. hfx is measured in process, too, with the
milliseconds of its parts. The threshold is one that few spans reach, as published models find few entities.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench import vocabulary
from bench.cases import SEED, callers, text_of, token_counter
from bench.child import Child, Prepare
from bench.client import run_figures
from bench.command import Settings, Work, run
from bench.exports import NAME, export, sources
from bench.figures import Figures, Goal, noted, say, take_turns
from bench.packages import converted
from bench.peers import THREADS, gliner_library
from bench.peers.gliner_library import FILES, Found, Texts, memory
from hfx.local.encoder import LocalModel
from hfx.perf.cache import made
from hfx.perf.load import Closed, LoadLimits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec, measure, server_target
from hfx.triton import EmbeddedServer

LABELS = (
    "person", "organization", "location", "date", "product", "event", "email address", "phone number", "money",
    "job title",
)  # fmt: skip
MARKERS = ("<<ENT>>", "<<SEP>>")
PRECISIONS, SIZES, TOKENS, SPANS = ("fp32", "int8"), (1, 8), 128, 50
HEAD: dict[str, Any] = {"hidden_size": 512, "max_width": 12, "max_len": 384, "num_rnn_layers": 1}
ENCODER: dict[str, Any] = {
    "vocab_size": 128_004, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 0, "relative_attention": True,
    "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "vocab_size": 16_000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
SECONDS, SERVED_SECONDS, TEXTS = 1.0, 3.0, 16
PARTS = ("encode ms", "net ms", "last step ms")
COLUMNS = ("texts/s", "p50 ms", "entities", "memory MiB", *PARTS)
SERVED = tuple(f"hfx {precision} served" for precision in PRECISIONS)
TORCH, ONNX, ONNX_INT8 = "gliner torch", *(f"gliner {name}" for name in FILES)


def spans(settings: Settings, figures: Figures) -> None:
    """All ways in every round, each in a process of its own."""
    checkpoint = made(*_checkpoint(settings.quick))
    repositories = {precision: exported(checkpoint, precision) for precision in PRECISIONS}
    texts = _texts(checkpoint)
    threshold = _threshold(repositories["fp32"], texts)
    loads = {callers(size): Texts(texts[:size], LABELS, threshold) for size in SIZES}
    figures.notes["gliner"] = ", ".join(gliner_library.GLINER.pins)
    with ExitStack() as stack:
        ways: dict[str, Any] = {}
        for label, child in _children(settings, checkpoint, repositories, figures, stack).items():
            ways[label] = partial(_in_process, child)
        for precision, label in zip(PRECISIONS, SERVED, strict=True):
            if _is_chosen(settings, label):
                server = stack.enter_context(EmbeddedServer(repositories[precision], models=[NAME]))
                ways[label] = partial(_served, server, texts, figures)
        take_turns(figures, "spans", loads, ways, settings.turns(3))


def exported(checkpoint: Path, precision: str) -> Path:
    """A repository with the checkpoint as NAME, without the gate. Raises PeerFailed."""
    files = [checkpoint / "gliner_config.json", *sources()]
    stem = f"published-{precision}-{checkpoint.name}"
    return converted(stem, files, export, checkpoint=str(checkpoint), precision=precision)


def open_hfx(repository: str) -> Prepare:
    """The published model in this process, and the seconds of its three steps."""
    model = LocalModel.open(Path(repository), NAME)

    def prepare(case: Texts) -> Any:
        requests = [_inputs(text, case) for text in case.texts]

        def call() -> Found:
            at = [time.perf_counter()]
            encoded = model.encode(requests)
            at.append(time.perf_counter())
            outputs = model.run(encoded)
            at.append(time.perf_counter())
            answers = [model.answer(*each) for each in zip(requests, encoded, outputs, strict=True)]
            at.append(time.perf_counter())
            entities = sum(len(json.loads(answer["entities"])) for answer in answers)
            parts = {name: after - before for name, before, after in zip(PARTS, at, at[1:], strict=False)}
            return Found(entities, memory(), tuple(parts.items()))

        return call

    return prepare


def _children(
    settings: Settings, checkpoint: Path, repositories: Mapping[str, Path], figures: Figures, stack: ExitStack
) -> dict[str, Child]:
    """The processes of hfx and of the library; those that can't be opened are notes."""
    found = dict[str, Child]()
    for precision, repository in repositories.items():
        if _is_chosen(settings, label := f"hfx {precision}"):
            found[label] = stack.enter_context(Child(open_hfx, repository=str(repository)))
    peers = [(label, runtime) for label, runtime in zip((TORCH, ONNX, ONNX_INT8), ("torch", *FILES), strict=True)]
    for label, runtime in peers:
        if _is_chosen(settings, label):
            with noted(figures, label):
                say(f"opening {label}")
                gliner_library.GLINER.fetch()
                arguments = {"checkpoint": str(checkpoint), "runtime": runtime, "threads": THREADS}
                onnx = str(_onnx(checkpoint)) if runtime in FILES else ""
                found[label] = stack.enter_context(Child(gliner_library.open_library, onnx=onnx, **arguments))
    return found


def _onnx(checkpoint: Path) -> Path:
    """The library's own ONNX files of the checkpoint. Raises PeerFailed."""
    files = [checkpoint / "gliner_config.json", Path(gliner_library.__file__)]
    return converted(f"gliner-onnx-{checkpoint.name}", files, gliner_library.convert, checkpoint=str(checkpoint))


def _is_chosen(settings: Settings, label: str) -> bool:
    return not settings.ways or any(word in label for word in settings.ways)


def _in_process(child: Child, case: Texts) -> dict[str, float | None]:
    sample = child.run(case, SECONDS)
    ms, found = 1e3 * statistics.median(sample.seconds), sample.value
    parts = {name: 1e3 * seconds for name, seconds in found.parts}
    size = len(case.texts)
    figures = {"texts/s": 1e3 * size / ms, "p50 ms": ms, "entities": found.entities / size}
    return {**figures, "memory MiB": found.memory / (1 << 20), **parts}


def _served(server: EmbeddedServer, texts: tuple[str, ...], figures: Figures, case: Texts) -> dict[str, float | None]:
    """A load of as many callers as the case has texts; the memory is that of all the server's processes."""
    size = len(case.texts)
    requests = RequestSet(tuple(Request(_as_tuples(_inputs(text, case))) for text in texts), "texts")
    limits = LoadLimits(seconds=SERVED_SECONDS, warmup_requests=2 * size)
    found = run_figures(measure(server_target(server, NAME), Closed(size), MeasureSpec(requests, limits, stream=False)))
    root = psutil.Process(server.pid)
    pss = [each.memory_full_info().pss for each in (root, *root.children(recursive=True))]
    return {"texts/s": found["requests/s"], "p50 ms": found["p50 ms"], "memory MiB": sum(pss) / (1 << 20)}


def _inputs(text: str, case: Texts) -> dict[str, Any]:
    return {"text_input": text, "candidate_labels": list(case.labels), "threshold": case.threshold}


def _as_tuples(inputs: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(value) if isinstance(value, list) else (value,) for name, value in inputs.items()}


def _texts(checkpoint: Path) -> tuple[str, ...]:
    chance, count = random.Random(SEED), token_counter(checkpoint)
    return tuple(text_of(TOKENS, count, chance) for _ in range(TEXTS))


def _threshold(repository: Path, texts: tuple[str, ...]) -> float:
    """The score that SPANS spans of an average text reach, by hfx in fp32."""
    model = LocalModel.open(repository, NAME)
    outputs = model.run(model.encode([_inputs(text, Texts((), LABELS, 0.5)) for text in texts]))
    logit = statistics.median(float(np.sort(output["logits"], axis=None)[-SPANS]) for output in outputs)
    return round(1 / (1 + math.exp(-logit)), 5)


def _checkpoint(is_small: bool) -> tuple[str, Any]:
    """The name of the checkpoint in the cache, and the function that writes it."""
    encoder, head = ENCODER | (SMALL if is_small else {}), HEAD | ({"hidden_size": 32} if is_small else {})
    parts = [json.dumps([encoder, head]), inspect.getsource(_write), Path(vocabulary.__file__).read_text()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return f"checkpoints/{digest}/gliner-small", partial(_write, encoder=encoder, head=head)


def _write(folder: Path, encoder: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Write configuration, tokenizer and random weights, under gliner's names."""
    import torch
    import transformers
    from safetensors.torch import save_file

    from hfx.exporter.encoder.checkpoint.label_heads import SpanHead, Words, library_name
    from hfx.exporter.encoder.checkpoint.labelled import SPANS_ENCODER

    tokenizer = vocabulary.tokenizer("t5", encoder["vocab_size"] - len(MARKERS), encoder["max_position_embeddings"])
    tokenizer.add_tokens(list(MARKERS), special_tokens=True)
    config = transformers.DebertaV2Config(**encoder, pad_token_id=tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        net, hidden = transformers.DebertaV2Model(config), head["hidden_size"]
        own = SpanHead(
            Words(config.hidden_size, hidden, head["num_rnn_layers"]), hidden, head["max_width"], is_deep=True
        )
        for each in own.parameters():  # by the usual start, all spans would have nearly the same score
            torch.nn.init.normal_(each, std=1 / math.sqrt(each.shape[-1]) if each.dim() > 1 else 0.0)
    tensors = {SPANS_ENCODER + name: value for name, value in net.state_dict().items()}
    tensors |= {library_name(name): value for name, value in own.state_dict().items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    stated = {
        "model_name": "deberta-v3-small", "span_mode": "markerV0", "subtoken_pooling": "first",
        "ent_token": MARKERS[0], "sep_token": MARKERS[1], "vocab_size": len(tokenizer),
        "class_token_index": tokenizer.convert_tokens_to_ids(MARKERS[0]), "encoder_config": config.to_dict(), **head,
    }  # fmt: skip
    (folder / "gliner_config.json").write_text(json.dumps(stated, indent=2), encoding="utf-8")
    tokenizer.save_pretrained(folder)


def _goals() -> tuple[Goal, ...]:
    least = {(way, peer): factor for way in SERVED for peer, factor in ((TORCH, 3.0), (ONNX, 1.5))}
    least |= {(SERVED[1], ONNX_INT8): 1.5}
    return tuple(
        Goal(callers(size), "texts/s", (way,), least=factor, against=(peer,))
        for size in SIZES
        for (way, peer), factor in least.items()
    )


TITLE = "GLiNER of gliner_small-v2.1's size, texts of 128 tokens, 10 labels"
WORKS = {"spans": Work(TITLE, spans, COLUMNS, SERVED, "texts/s", _goals())}

if __name__ == "__main__":
    sys.exit(run("labelled", WORKS))
