"""`python -m bench.lookup`: prompt lookup, with and without, in turn; and what a run that verifies guesses takes.

`copies`: a small GPT-2 that was trained to copy the beginning of a passage of PASSAGE tokens, on passages of BillSum
(of bills that it was not trained on); and distilgpt2's shape that writes at random, where no guess is right. `verify`:
one run of several tokens beside a step.
"""

from __future__ import annotations

import csv
import os
import random
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import command
from bench.cases import Served, prompts
from bench.child import Child, PeerFailed, Prepare, Run
from bench.command import Settings, Work
from bench.exports import sources
from bench.figures import Figures, Goal, noted, take_turns
from bench.packages import converted
from bench.peers import THREADS

DATA = Path(os.environ.get("HFX_BENCH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data") / "billsum"
WITH, WITHOUT = "hfx, guessing", "hfx, one by one"
COPIES, RANDOM = "BillSum, copied", "distilgpt2, at random"
TEXTS, NEW, SECONDS = 12, 40, 2.0
SHAPES, DRAFTS, SOURCE, STEPS = ("distilgpt2", "flan-t5-base", "bart-large-cnn"), (1, 3, 7, 11, 15), 200, 30
# The copying model: tokens of its vocabulary, its size, and what it takes to learn it.
VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS = 2000, 128, 2, 2, 256
END, COPY, HELD_OUT, PASSAGE, TRAINING_STEPS, ROWS, RATE = 0, 1, 40, 144, 700, 16, 2e-3


def copies(settings: Settings, figures: Figures) -> None:
    """Tokens a second of one request after the other."""
    for case in (COPIES, RANDOM):
        with noted(figures, case), ExitStack() as stack:
            folder, requests = (_copying if case == COPIES else _at_random)(settings)
            ways = {}
            for way, guesses in ((WITH, True), (WITHOUT, False)):
                child = stack.enter_context(Child(open_engine, folder=folder, requests=requests, guesses=guesses))
                ways[way] = partial(_turn, child)
            take_turns(figures, case, {case: 0}, ways, settings.turns(7))


def _turn(child: Child, case: int) -> dict[str, float]:
    sample = child.run(case, SECONDS)
    tokens, accepted, steps = sample.value
    ms = 1e3 * statistics.median(sample.seconds)
    return {"ms": ms, "tokens/s": 1e3 * tokens / ms, "tokens a step": tokens / steps, "accepted": accepted / tokens}


def open_engine(folder: str, requests: list[Any], guesses: bool) -> Prepare:
    """One request after the other; gives (tokens, those that were guessed, steps)."""
    from hfx.python_backends.engine.engine import Engine
    from hfx.python_backends.engine.request import Request, Settings
    from hfx.python_backends.engine.spec import NATIVE

    engine = Engine.open(folder, slots=4, threads=THREADS, guesses=guesses, runtime=NATIVE)
    ready = [Request(ids, Settings(**settings)) for ids, settings in requests]

    def run() -> tuple[int, int, int]:
        before = engine.stats()
        for each in ready:
            engine.submit(each).result(60)
        after = engine.stats()
        return tuple(getattr(after, name) - getattr(before, name) for name in ("tokens", "accepted_tokens", "steps"))

    return lambda case: run


def verify(settings: Settings, figures: Figures) -> None:
    """A step, and runs of a step's token and guessed ones behind it."""
    for shape in SHAPES:
        with noted(figures, shape), ExitStack() as stack:
            checkpoint = Served(shape).checkpoint(settings.quick)
            folder = converted(f"engine-{checkpoint.name}", sources(), write_engine, checkpoint=str(checkpoint))
            child = stack.enter_context(Child(open_partition, folder=str(folder / "engine")))
            cases = {f"{shape}, {draft} guessed": draft for draft in (0, *DRAFTS)}
            take_turns(figures, shape, cases, {"hfx": partial(_run_turn, child)}, settings.turns(5))


def _run_turn(child: Child, draft: int) -> dict[str, float]:
    return dict(child.run(draft, SECONDS).value)


def open_partition(folder: str) -> Prepare:
    """Medians of a step and of a run with guesses, in turn, behind the same tokens: ms, and in times of a step's."""
    from hfx.python_backends.engine.plan import Span
    from hfx.python_backends.engine.runner import SessionSettings
    from hfx.python_backends.engine.runners import open_runner
    from hfx.python_backends.engine.spec import NATIVE, read_spec

    spec = read_spec(Path(folder))
    runner: Any = open_runner(spec, 4, SessionSettings(threads=THREADS, runtime=NATIVE))
    runner.open_partition(1)
    partition = runner.partitions[1]
    ids = prompts(1, min(SOURCE, spec.max_length - 64))[0]
    if spec.has_encoder:
        runner.encode([ids], [[(1, 0)]])
    else:
        runner.run([Span(ids, rows=(0,))], logits=False)

    def prepare(draft: int) -> Run:
        def once(tokens: int) -> float:
            length = int(partition.lengths[0])
            partition.set_next_tokens([(0, ids[0])])
            begin = time.perf_counter()
            if tokens:
                partition.verifier.verify(ids[:tokens], logits=False)
            else:
                partition.step(1, logits=False)
            seconds = time.perf_counter() - begin
            partition.start(0, length)
            return seconds

        def run() -> dict[str, float]:
            pairs = [(once(0), once(draft)) for _ in range(STEPS)]
            step, other = (1e3 * statistics.median(each) for each in zip(*pairs, strict=True))
            return {"ms": other, "in steps": other / step}

        return run

    return prepare


def write_engine(folder: str, checkpoint: str) -> None:
    """The engine folder of a checkpoint, in int8 on native operators."""
    from hfx.exporter.generation.engine_folder import write_engine_folder
    from hfx.exporter.quantize.generator import FORMATS
    from hfx.exporter.runtime import weight_levels
    from hfx.exporter.source import open_checkpoint
    from hfx.native import library

    levels = weight_levels()
    write_engine_folder(
        open_checkpoint(checkpoint), Path(folder) / "engine", FORMATS["int8"], levels, library=library()
    )


def _at_random(settings: Settings) -> tuple[str, list[Any]]:
    checkpoint = Served("distilgpt2").checkpoint(settings.quick)
    folder = converted(f"engine-{checkpoint.name}", sources(), write_engine, checkpoint=str(checkpoint))
    sampled = {"max_tokens": NEW, "do_sample": True, "top_k": 0}
    texts = enumerate(prompts(3, 16 if settings.quick else 200))
    return str(folder / "engine"), [(ids, sampled | {"seed": seed}) for seed, ids in texts]


def _copying(settings: Settings) -> tuple[str, list[Any]]:
    if not DATA.is_dir():
        raise PeerFailed("there is no BillSum: set HFX_BENCH_DATA to a folder with billsum/*.csv")
    steps = 20 if settings.quick else TRAINING_STEPS
    trained = converted("copying", [Path(__file__)], train, steps=steps)
    checkpoint = str(trained / "checkpoint")
    folder = converted("engine-copying", sources(), write_engine, checkpoint=checkpoint)
    rng, texts = random.Random(1), tokenized(trained)[-HELD_OUT:]
    passages = [_passage(rng, rng.choice(texts)) for _ in range(TEXTS)]
    ends = {"max_tokens": NEW + 8, "eos_ids": (END,)}
    return str(folder / "engine"), [((*passage, COPY), ends) for passage in passages]


def tokenized(trained: Path) -> list[list[int]]:
    """The texts of all bills as the copying model's tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(trained / "checkpoint" / "tokenizer.json"))
    return [encoding.ids for encoding in tokenizer.encode_batch(bills())]


def bills() -> list[str]:
    """Their texts, in one line each."""
    csv.field_size_limit(1 << 30)
    texts = []
    for path in sorted(DATA.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            texts += [" ".join(row["text"].split()) for row in csv.DictReader(file)]
    return texts


def train(folder: str, steps: int) -> None:
    """A GPT-2 that continues a passage and COPY by the passage's first NEW tokens and END."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    torch.set_num_threads(1)  # of a net as small, more only wait for each other
    rng = random.Random(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|copy|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(bills()[:-HELD_OUT], learner)
    checkpoint = Path(folder) / "checkpoint"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[END]).save_pretrained(checkpoint)
    texts = tokenized(Path(folder))[:-HELD_OUT]
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=END, eos_token_id=END, **rates,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 100) * (1 - step / steps) ** 0.5
        passages = [_passage(rng, rng.choice(texts)) for _ in range(ROWS)]
        ids = torch.tensor([[*passage, COPY, *passage[:NEW], END] for passage in passages])
        logits = model(ids).logits[:, PASSAGE:-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, PASSAGE + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(checkpoint)


def _passage(rng: random.Random, tokens: list[int]) -> list[int]:
    start = rng.randrange(len(tokens) - PASSAGE)
    return tokens[start : start + PASSAGE]


WORKS = {
    "copies": Work(
        "One request after the other, with prompt lookup and without",
        copies,
        ("ms", "tokens/s", "tokens a step", "accepted"),
        (WITH,),
        "ms",
        (
            Goal(COPIES, "ms", (WITH,), least=1.6, against=(WITHOUT,), relation="inverse", lower=True),
            Goal(RANDOM, "ms", (WITH,), least=0.97, against=(WITHOUT,), relation="inverse", lower=True),
        ),
    ),
    "verify": Work("One run of several tokens", verify, ("ms", "in steps"), ("hfx",), "ms"),
}

if __name__ == "__main__":
    sys.exit(command.run("lookup", WORKS))
