"""`python -m bench.quality`: what each format of weights costs a small trained decoder, beside llama.cpp's formats.

A Llama of four layers is trained on English prose for some minutes, once, and reads prose that it was not trained on.
`KL` is the divergence of a format's distribution of the next token from torch's in float32, `agreement` the share of
positions with torch's likeliest token; both are means over all positions.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import command, vocabulary
from bench.checkpoints import Shape
from bench.child import apart
from bench.command import Settings, Work
from bench.figures import Figures, Goal, noted, say
from bench.peers import Model, Way, use
from hfx.perf.cache import made

LENGTH, HELD_OUT = 128, 20  # tokens of a text that is read; one text of so many is not trained on
STEPS, BATCH, WARM_UP, RATE = 500, 8, 40, 2e-3
CASE = "held-out prose"
SHAPE = Shape("trained-llama", "LlamaForCausalLM", "LlamaConfig", {
    "vocab_size": 16384, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": True,
}, "gpt2", 512)  # fmt: skip
LLAMA_CPP = tuple(Way("llama.cpp", precision) for precision in ("fp32", "q8_0", "q4_0", "q4_k_m"))
Texts = list[list[int]]
Logits = NDArray[np.float32]  # [positions, vocabulary]


def quality(settings: Settings, figures: Figures) -> None:
    """Every format reads the held-out texts."""
    checkpoint = trained(settings)
    texts = split(checkpoint)[1][: 4 if settings.quick else None]
    say("torch")
    expected = apart(torch_logits, checkpoint=str(checkpoint), texts=texts)
    ours: dict[str, Callable[..., Any]] = {
        "hfx fp32": partial(hfx_logits, precision="fp32", entry=0),
        "hfx int8": partial(hfx_logits, precision="int8", entry=0),
        "hfx int4, blocks of 128": partial(hfx_logits, precision="int4", entry=0),
        "hfx int4, blocks of 32, head in int8": partial(hfx_logits, precision="int4", entry=1),
        "hfx int4, blocks of 16, head in fp32": partial(hfx_logits, precision="int4", entry=2),
    }
    theirs = {way.label: partial(llama_cpp_logits, way=way) for way in LLAMA_CPP}
    figures.add("torch fp32", CASE, 0, perplexity=perplexity(expected, texts))
    for label, read in {**ours, **theirs}.items():
        if settings.ways and not any(word in label for word in settings.ways):
            continue
        with noted(figures, label):
            say(label)
            found, size = apart(read, checkpoint=str(checkpoint), texts=texts)
            facts = {"KL": divergence(expected, found), "agreement": agreement(expected, found), "MB": size / 1e6}
            figures.add(label, CASE, 0, perplexity=perplexity(found, texts), **facts)


def trained(settings: Settings) -> Path:
    """Return the folder of the trained checkpoint. The first call trains it."""
    steps = 5 if settings.quick else STEPS
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    name = f"checkpoints/{SHAPE.name}-{steps}-{source}"
    return made(name, lambda folder: apart(train, folder=str(folder / SHAPE.name), steps=steps)) / SHAPE.name


def perplexity(found: Iterable[Logits], texts: Texts) -> float:
    """The exponential of the mean negative log-probability of each text's tokens behind the first."""
    losses = []
    for logits, text in zip(found, texts, strict=True):
        losses.append(-_log_softmax(logits)[np.arange(len(text) - 1), text[1:]])
    return float(np.exp(np.concatenate(losses).mean()))


def divergence(expected: Iterable[Logits], found: Iterable[Logits]) -> float:
    """The mean Kullback-Leibler divergence of the found distributions from the expected ones, in nats."""
    each = []
    for want, got in zip(expected, found, strict=True):
        log_want, log_got = _log_softmax(want), _log_softmax(got)
        each.append((np.exp(log_want) * (log_want - log_got)).sum(axis=1))
    return float(np.concatenate(each).mean())


def agreement(expected: Iterable[Logits], found: Iterable[Logits]) -> float:
    """The share of positions with the same likeliest token."""
    same = [want.argmax(1) == got.argmax(1) for want, got in zip(expected, found, strict=True)]
    return float(np.concatenate(same).mean())


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def split(checkpoint: Path) -> tuple[Texts, Texts]:
    """The prose as token ids, in texts of LENGTH: those to train on, and those held out."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    ids = [token for text in vocabulary.corpus() for token in tokenizer(f"{text}\n", verbose=False)["input_ids"]]
    texts = [ids[begin : begin + LENGTH] for begin in range(0, len(ids) - LENGTH, LENGTH)]
    return [text for i, text in enumerate(texts) if i % HELD_OUT], texts[::HELD_OUT]


def train(folder: str, steps: int) -> None:
    """Write the trained checkpoint into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM

    from bench.checkpoints import write

    write(SHAPE, Path(folder))
    texts = torch.tensor(split(Path(folder))[0])
    torch.manual_seed(SHAPE.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=WARM_UP / STEPS)
    for _ in range(steps):
        batch = texts[torch.randint(len(texts), (BATCH,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)


def torch_logits(checkpoint: str, texts: Texts) -> list[Logits]:
    """torch's logits before each token of each text but the first."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        return [model(torch.tensor([text[:-1]])).logits[0].numpy() for text in texts]


def hfx_logits(checkpoint: str, texts: Texts, precision: Any, entry: int) -> tuple[list[Logits], int]:
    """The same by an engine folder in the precision's formats number `entry`, and the folder's bytes."""
    from hfx import native
    from hfx.exporter.generation.engine_folder import write_engine_folder
    from hfx.exporter.generation.measure import ROWS, forced_logits, open_rows
    from hfx.exporter.quantize.generator import FORMATS_TRIED
    from hfx.exporter.runtime import weight_levels
    from hfx.exporter.source import open_checkpoint
    from hfx.python_backends.engine.sessions import SessionSettings

    runtime: Any = "onnxruntime" if precision == "fp32" else "native"
    library = native.library() if runtime == "native" else None
    with tempfile.TemporaryDirectory() as folder:
        formats = FORMATS_TRIED[precision][entry]
        spec = write_engine_folder(open_checkpoint(checkpoint), Path(folder), formats, weight_levels(), library=library)
        runner = open_rows(spec, ROWS, SessionSettings(1, "CPU", runtime=runtime))
        found: list[list[Logits]] = [[] for _ in texts]
        for text, _, logits in forced_logits(runner, [text[:1] for text in texts], [text[1:] for text in texts], []):
            found[text].append(logits.copy())
        runner.close()
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.bin"))
    return [np.stack(rows) for rows in found], size


def llama_cpp_logits(checkpoint: str, texts: Texts, way: Way) -> tuple[list[Logits], int]:
    """The same by llama.cpp, and its file's bytes."""
    model = Model.of(Path(checkpoint))
    folder = way.folder(model)
    adapter = importlib.import_module("bench.peers.llama_cpp")
    use(adapter.PACKAGES)
    net = adapter.open_net(model, str(folder), way.precision, 1, "")
    return [net.logits(text[:-1]) for text in texts], Path(folder or "", adapter.FILE).stat().st_size


def _goals(pairs: Sequence[tuple[str, str]]) -> tuple[Goal, ...]:
    return tuple(Goal(CASE, "KL", (ours,), most=1.0, against=(theirs,)) for ours, theirs in pairs)


WORKS = {
    "formats": Work(
        "A small Llama trained on prose, by format of its weights", quality, ("perplexity", "KL", "agreement", "MB"),
        goals=_goals((
            ("hfx int8", "llama.cpp q8_0"),
            ("hfx int4, blocks of 128", "llama.cpp q4_0"),
            ("hfx int4, blocks of 32, head in int8", "llama.cpp q4_0"),
            ("hfx int4, blocks of 32, head in int8", "llama.cpp q4_k_m"),
        )),
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("quality", WORKS))
