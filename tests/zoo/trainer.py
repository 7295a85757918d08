"""Training a recipe: tokenizer, model, optimisation, held-out check, files on disk.

A recipe gives the same weights on the same machine and library versions, and leaves torch's
global settings as they were.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import architectures, tokenization, world
from tests.zoo.objectives.objective import Feature, Loss, Objective
from tests.zoo.recipes import Recipe
from tests.zoo.tasks import TASKS

# Sums are split by thread, so another count gives other last digits. One: these models are too small to gain from more,
# and threads that wait for each other on a busy machine cost several times the work.
THREADS = 1


_TOKEN_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


class TrainingMissed(RuntimeError):
    """A trained checkpoint stayed below its recipe's floor on held-out data, and is not published."""


@dataclass(frozen=True)
class Trained:
    """What came out of a training: the held-out metric, and its seconds (of the CPU and on the wall)."""

    metric: str
    value: float
    cpu_seconds: float
    wall_seconds: float


def train(recipe: Recipe, folder: Path) -> Trained:
    """Train `recipe`, write the checkpoint into `folder`. Raises `TrainingMissed` when it stays below its floor."""
    objective = TASKS[recipe.task].objective
    with _deterministic(recipe.seed):
        cpu, wall = time.process_time(), time.perf_counter()
        model, tokenizer = _fit(recipe, objective)
        if objective.generation:
            model.generation_config = _generation_config(model, objective.generation)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        value = _evaluate(model, tokenizer, recipe, objective)
    trained = Trained(objective.metric, value, round(cpu, 1), round(wall, 1))
    print(f"{recipe.name}: held-out {trained.metric} {value:.3f}, {trained.cpu_seconds} CPU s", file=sys.stderr)
    if value < recipe.floor:
        raise TrainingMissed(f"{recipe.name}: held-out {trained.metric} {value:.3f} is below {recipe.floor}")
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    if objective.extra_files:
        objective.extra_files(folder, model, tokenizer)
    return trained


def train_tokenizer(recipe: Recipe) -> Any:
    """The tokenizer of `recipe`, of its training texts."""
    texts_of = TASKS[recipe.task].objective.texts
    texts = [text for example in _examples(recipe, "train", recipe.train_examples) for text in texts_of(example)]
    kind = architectures.ARCHITECTURES[recipe.architecture].tokenizer
    return tokenization.train(kind, texts, recipe.vocab_size, recipe.max_tokens)


def _fit(recipe: Recipe, objective: Objective) -> tuple[Any, Any]:
    examples = _examples(recipe, "train", recipe.train_examples)
    tokenizer = train_tokenizer(recipe)
    model = architectures.model(recipe, tokenizer, objective.head, objective.labels, objective.problem_type)
    features = objective.encode(tokenizer, examples)
    if objective.warm_up and recipe.warm_up_steps:
        _optimise(
            model, objective.warm_up.loss, objective.warm_up.features(model, features), recipe, recipe.warm_up_steps
        )
    _optimise(model, objective.loss, features, recipe, recipe.steps)
    return model, tokenizer


def _optimise(model: Any, loss_of: Loss, features: list[Feature], recipe: Recipe, steps: int) -> None:
    import torch

    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=recipe.learning_rate, total_steps=steps, pct_start=0.1
    )
    for step, batch in enumerate(_shuffled(features, recipe, steps)):
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(model, batch, recipe.smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"{recipe.name}: step {step}/{steps} loss {loss.item():.3f}", file=sys.stderr)


def _shuffled(features: list[Feature], recipe: Recipe, steps: int) -> Iterator[list[Feature]]:
    """`steps` batches of random features of similar length, so that little of a batch is padding."""
    rng = random.Random(recipe.seed)
    pool: list[list[Feature]] = []
    for _ in range(steps):
        if not pool:
            block = rng.sample(features, min(len(features), recipe.batch_size * 16))
            block.sort(key=lambda f: len(f["input_ids"]))
            pool = [block[i : i + recipe.batch_size] for i in range(0, len(block), recipe.batch_size)]
            rng.shuffle(pool)
        yield pool.pop()


def _evaluate(model: Any, tokenizer: Any, recipe: Recipe, objective: Objective) -> float:
    import torch

    model.eval()
    with torch.inference_mode():
        return objective.evaluate(model, tokenizer, _examples(recipe, "heldout", recipe.heldout_examples))


def _examples(recipe: Recipe, split: world.Split, count: int) -> list[Any]:
    return world.draw(TASKS[recipe.task].compose, TASKS[recipe.task].data, split, count)


def _generation_config(model: Any, settings: Mapping[str, Any]) -> Any:
    """The GenerationConfig of `settings` with the special tokens of the model."""
    import transformers

    roles = {role: getattr(model.generation_config, role) for role in _TOKEN_ROLES}
    return transformers.GenerationConfig(**roles, **settings)


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Seeded, deterministic, with a fixed thread count; the caller's torch settings come back afterwards."""
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(THREADS)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.set_num_threads(threads)
