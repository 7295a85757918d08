"""The demo's two checkpoints: a RoBERTa that classifies reviews and a GPT-2 that writes stories, trained in seconds.

They are ordinary checkpoints in the format of transformers, but small: two layers of 128 dimensions. They learn from
texts that are made of a few words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hfx.exporter.quiet import quiet_libraries

LABELS = ("negative", "positive")
THINGS = (
    "film", "book", "concert", "hotel", "room", "view", "soup", "pizza", "coffee", "dinner", "service", "waiter",
    "train", "trip", "museum", "shop", "phone", "camera", "lesson", "teacher", "restaurant", "song", "play", "game",
)  # fmt: skip
WORDS = {
    "positive": (
        "good", "great", "wonderful", "excellent", "lovely", "perfect", "brilliant", "delightful", "charming",
        "beautiful", "impressive", "pleasant",
    ),
    "negative": (
        "bad", "terrible", "awful", "horrible", "boring", "poor", "disappointing", "useless", "ugly", "annoying",
        "dull", "rude",
    ),
}  # fmt: skip
VERBS = {"positive": ("loved", "enjoyed", "liked", "admired"), "negative": ("hated", "disliked", "regretted", "left")}
REVIEWS = (
    "The {thing} was {word}.", "This {thing} is really {word}!", "What a {word} {thing}!", "It was a {word} {thing}.",
    "We {verb} the {thing}.", "I {verb} this {thing}, it was so {word}.", "A {word} {thing}.",
    "At first I had doubts, but the {thing} was {word}.", "The {thing} was not {opposite}, it was {word}.",
)  # fmt: skip
NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Grace", "Henry", "Irina", "Oscar", "Paula", "Simon")
PLACES = ("Oslo", "Paris", "Cairo", "Lima", "Delhi", "Berlin", "Madrid", "Kyoto", "Vienna", "Athens")
OBJECTS = ("lamp", "chair", "bicycle", "clock", "kettle", "carpet", "painting", "camera", "coat", "drum")
COLOURS = ("red", "blue", "green", "yellow", "black", "white")
WEATHER = ("It was raining.", "The sun was shining.", "The streets were quiet.", "There was a light wind.")
STORY = (
    "{name} went to {place}. {weather} There {name} bought a {colour} {thing} for {friend}. "
    "On the way home it got dark. {friend} opened the door and smiled. The {colour} {thing} was just right."
)
HIDDEN, LAYERS, HEADS, FEED_FORWARD, POSITIONS = 128, 2, 4, 256, 128
# 400 steps of 8 stories take half the time of 300 steps of 32 (20 and 44 s of one core, Zen 3). Of 48 greedy stories,
# 33 and 40 keep to their names, colours and things.
BATCH, LEARNING_RATE = 8, 2e-3
SMOOTHING = 0.05  # of labels: decisive logits that do not saturate
NO_LOSS = -100  # the target of padding
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ROBERTA_ROLES = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
    "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
END = "<|endoftext|>"
Batch = list[Any]
Loss = Callable[[Batch], Any]
# A title and a number of steps -> the function that counts a step.
Counted = Callable[[str, int], AbstractContextManager[Callable[[], None]]]


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Return `count` reviews with their labels."""
    rng = random.Random(seed)
    return [_review(rng) for _ in range(count)]


def stories(count: int, seed: int) -> list[str]:
    """Return `count` stories of five sentences."""
    rng = random.Random(seed)
    return [_story(rng) for _ in range(count)]


def _review(rng: random.Random) -> tuple[str, str]:
    label = rng.choice(LABELS)
    other = LABELS[1 - LABELS.index(label)]
    text = rng.choice(REVIEWS).format(
        thing=rng.choice(THINGS),
        word=rng.choice(WORDS[label]),
        verb=rng.choice(VERBS[label]),
        opposite=rng.choice(WORDS[other]),
    )
    return text, label


def _story(rng: random.Random) -> str:
    name, friend = rng.sample(NAMES, 2)
    return STORY.format(
        name=name,
        friend=friend,
        place=rng.choice(PLACES),
        weather=rng.choice(WEATHER),
        colour=rng.choice(COLOURS),
        thing=rng.choice(OBJECTS),
    )


def write_classifier(folder: Path, counted: Counted, steps: int = 200) -> None:
    """Train a classifier of reviews and write it to `folder`."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaTokenizerFast

    with quiet_libraries():
        torch.manual_seed(0)
        torch.set_num_threads(1)  # models this small gain nothing from more threads, which wait for each other
        examples = reviews(4000, seed=0)
        learned = _byte_pairs([text for text, _ in examples], ROBERTA_SPECIALS)
        tokenizer = RobertaTokenizerFast(tokenizer_object=learned, model_max_length=POSITIONS, **ROBERTA_ROLES)
        config = RobertaConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=FEED_FORWARD,
            max_position_embeddings=POSITIONS + 2,
            type_vocab_size=1,
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
        )
        model = RobertaForSequenceClassification(config)

        def loss(batch: Batch) -> Any:
            inputs = tokenizer([text for text, _ in batch], padding=True, return_tensors="pt")
            targets = torch.tensor([LABELS.index(label) for _, label in batch])
            return torch.nn.functional.cross_entropy(model(**inputs).logits, targets, label_smoothing=SMOOTHING)

        with counted(f"Training {folder.name}", steps) as count:
            _train(model, examples, loss, steps, count)
        _save(model, tokenizer, folder)


def write_generator(folder: Path, counted: Counted, steps: int = 400) -> None:
    """Train a writer of stories and write it to `folder`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

    with quiet_libraries():
        torch.manual_seed(0)
        torch.set_num_threads(1)
        examples = stories(4000, seed=0)
        learned = _byte_pairs(examples, (END,))
        tokenizer = GPT2TokenizerFast(
            tokenizer_object=learned, model_max_length=POSITIONS, bos_token=END, eos_token=END, unk_token=END
        )
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=HIDDEN,
            n_layer=LAYERS,
            n_head=HEADS,
            n_inner=FEED_FORWARD,
            n_positions=POSITIONS,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        model = GPT2LMHeadModel(config)
        spelled = [[*tokenizer(story)["input_ids"], tokenizer.eos_token_id] for story in examples]

        def loss(batch: Batch) -> Any:
            longest = max(map(len, batch))
            ids = torch.tensor([[*story, *[tokenizer.eos_token_id] * (longest - len(story))] for story in batch])
            targets = torch.tensor([[*story, *[NO_LOSS] * (longest - len(story))] for story in batch])[:, 1:]
            logits = model(input_ids=ids).logits[:, :-1]
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=SMOOTHING)

        with counted(f"Training {folder.name}", steps) as count:
            _train(model, spelled, loss, steps, count)
        model.generation_config.max_new_tokens = 64
        _save(model, tokenizer, folder)


def _byte_pairs(lines: Sequence[str], specials: Sequence[str]) -> Any:
    """Return a byte-level tokenizer of 500 pieces learned from `lines`; it adds RoBERTa's special tokens if given."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    if "<s>" in specials:
        begin, end = (("<s>", specials.index("<s>")), ("</s>", specials.index("</s>")))
        tokenizer.post_processor = processors.RobertaProcessing(end, begin, trim_offsets=True, add_prefix_space=False)
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _train(model: Any, examples: Sequence[Any], loss: Loss, steps: int, count: Callable[[], None]) -> None:
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=LEARNING_RATE, total_steps=steps, pct_start=0.1)
    model.train()
    rng = random.Random(0)
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        loss(rng.sample(examples, BATCH)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        count()
    model.eval()


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
