"""Tiny random GPT-2, BART and T5 in torch: transformers' own `generate`, and the same logits for our searches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

from hfx.python_backends.engine import reference
from hfx.python_backends.engine.generation_settings import logit_biases
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.search import Search

VOCABULARY = 60
FAMILIES = ("gpt2", "bart", "t5")
PAD, END, OTHER_END = 1, 2, 7


@dataclass(frozen=True)
class TorchModel:
    """A model whose end tokens are likely, so that sequences end at different lengths."""

    model: Any
    start: tuple[int, ...]

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.start)

    def prompt(self, seed: int) -> tuple[int, ...]:
        random = np.random.default_rng(seed)
        return tuple(random.integers(8, VOCABULARY, random.integers(1, 9)).tolist())

    @torch.inference_mode()
    def logits(self, prompt: tuple[int, ...], rows: list[list[int]]) -> np.ndarray:
        """Return [rows, vocabulary] after `rows`, bit equal to what `generate` computes without a cache."""
        ids = torch.tensor(rows)
        if self.is_encoder_decoder:
            hidden = self.model.get_encoder()(torch.tensor([prompt])).last_hidden_state
            encoded = BaseModelOutput(hidden.repeat_interleave(len(rows), dim=0))
            output = self.model(encoder_outputs=encoded, decoder_input_ids=ids, use_cache=False)
        else:
            output = self.model(input_ids=ids, use_cache=False)
        return output.logits[:, -1].numpy().copy()

    @torch.inference_mode()
    def generate(self, prompt: tuple[int, ...], settings: Settings, **options: Any) -> Any:
        """Return transformers' answer, with its new ids as `new_ids` [returned, length].

        `options` are those of its generate.
        """
        options["logits_processor"] = LogitsProcessorList(
            [OpenAIPenalties(settings, len(prompt)), *options.get("logits_processor", ())]
        )
        if settings.stop_sequences:
            options["stopping_criteria"] = [EndsWith(settings, prompt)]
        if self.is_encoder_decoder:
            options["decoder_input_ids"] = torch.tensor([settings.decoder_prompt])
        output = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=generation_config(settings),
            **options,
        )
        output.new_ids = output.sequences[:, len(settings.decoder_prompt or prompt) :].tolist()
        return output


class EndsWith(StoppingCriteria):
    """Stop sequences as a stopping criterion of transformers, for new tokens only."""

    def __init__(self, settings: Settings, prompt: tuple[int, ...]) -> None:
        self.start = len(settings.decoder_prompt or prompt)
        self.sequences = settings.stop_sequences

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        new = [row[self.start :] for row in input_ids.tolist()]
        return torch.tensor([any(tuple(row[-len(stop) :]) == stop for stop in self.sequences) for row in new])


class OpenAIPenalties(LogitsProcessor):
    """OpenAI's formula: logits[j] -= count[j] * frequency + (count[j] > 0) * presence; then logits[j] += bias[j].

    `generate` passes it the scores after its own processors. A forced token, which is the only one with a score, keeps
    its score.
    """

    def __init__(self, settings: Settings, prompt: int) -> None:
        self.start = len(settings.decoder_prompt) or prompt
        self.frequency, self.presence = settings.frequency_penalty, settings.presence_penalty
        self.biases = logit_biases(settings.logit_bias)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        edited = scores.clone()
        new = input_ids[:, self.start :]
        counts = torch.zeros_like(scores).scatter_add_(1, new, torch.ones(new.shape))
        edited -= counts * self.frequency + (counts > 0) * self.presence
        for token, bias in self.biases.items():
            edited[:, token] += bias
        return torch.where(scores.isfinite().sum(1, keepdim=True) == 1, scores, edited)


def pad_id(settings: Settings) -> int:
    """Return PAD or 0: no answer depends on it."""
    return PAD if settings.max_tokens % 2 else 0


def generation_config(settings: Settings) -> GenerationConfig:
    """Return `settings` as transformers' generation config."""
    return GenerationConfig(
        max_new_tokens=settings.max_tokens,
        min_new_tokens=settings.min_tokens,
        num_beams=settings.num_beams,
        num_return_sequences=settings.num_return_sequences,
        do_sample=settings.do_sample,
        repetition_penalty=settings.repetition_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        eos_token_id=list(settings.eos_ids) or None,
        pad_token_id=pad_id(settings),
        decoder_start_token_id=settings.decoder_prompt[0] if settings.decoder_prompt else None,
        forced_bos_token_id=settings.forced_bos_id,
        forced_eos_token_id=settings.forced_eos_id,
        suppress_tokens=list(settings.suppress_ids) or None,
        begin_suppress_tokens=list(settings.begin_suppress_ids) or None,
        bad_words_ids=[list(word) for word in settings.bad_words_ids] or None,
        renormalize_logits=settings.renormalize_logits,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )


@cache
def torch_model(family: str) -> TorchModel:
    """Return the tiny model of `family`, with peaked distributions and likely end tokens."""
    torch.manual_seed(7)
    sizes = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END}
    model: Any
    if family == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**sizes, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=END))
        start: tuple[int, ...] = ()
    elif family == "bart":
        shape = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        widths = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
        model = BartForConditionalGeneration(BartConfig(**sizes, **shape, **widths, forced_eos_token_id=None))
        start = (END,)
    else:
        model = T5ForConditionalGeneration(T5Config(**sizes, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2))
        start = (0,)
    head = torch.nn.Linear(16, VOCABULARY)
    torch.nn.init.normal_(head.weight, std=0.8)
    with torch.no_grad():
        head.bias.zero_()
        head.bias[[END, OTHER_END]] = torch.tensor([1.5, 0.5])
        if family == "t5":
            head.weight *= 4  # T5 scales the input of its head by d_model ** -0.5
    model.lm_head = head
    model.config.tie_word_embeddings = False
    model.generation_config = GenerationConfig()
    return TorchModel(model.eval(), start)


def torch_log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-softmax, bit equal to that of `generate`."""
    return torch.log_softmax(torch.from_numpy(logits), -1).numpy()


def drive(search: Search, model: TorchModel, prompt: tuple[int, ...]) -> tuple[list[Event], tuple[Event, ...]]:
    """Run `search` to its end on the logits of `model`, as an engine would; return its events and completions."""
    return reference.drive(search, lambda rows: model.logits(prompt, rows), one_step)


def one_step(search: Search, logits: np.ndarray) -> Any:
    """Offer `logits` [rows, vocabulary] to `search`."""
    return reference.one_step(search, logits, torch_log_softmax)


def random_settings(model: TorchModel, random: np.random.Generator, **fixed: Any) -> Settings:
    """Return random settings of everything that changes a greedy or beam search; `fixed` overrides them."""

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    max_tokens = one_of(1, 2, 5, 9, 14, 20)
    drawn = {
        "max_tokens": max_tokens,
        "min_tokens": min(one_of(0, 0, 3, 8), max_tokens),
        "repetition_penalty": one_of(1.0, 1.0, 1.3, 0.7, 2.5),
        "frequency_penalty": one_of(0, 0, 0.6, 2.0, -0.3),
        "presence_penalty": one_of(0, 0, 1.1, -0.7),
        "logit_bias": one_of((), (), {31: 2.5, 40: -100, 33: -0.3}),
        "no_repeat_ngram_size": one_of(0, 0, 1, 2, 3),
        "length_penalty": one_of(1.0, 0.0, -0.5, 0.6, 2.0),
        "early_stopping": one_of(False, True, "never"),
        "eos_ids": one_of((END,), (END, OTHER_END), (), (END, OTHER_END, *range(30, 45))),
        "decoder_prompt": one_of(model.start, (*model.start, 11, 12)) if model.start else (),
        "forced_bos_id": one_of(None, None, 13, END),
        "forced_eos_id": one_of(None, END, 14),
        "suppress_ids": one_of((), (20, 21, 3)),
        # With fewer tokens transformers may ban the very token that it forces, and has nothing left.
        "begin_suppress_ids": one_of((), (END, 22), tuple(range(8, 40))) if max_tokens > 2 else (),
        "bad_words_ids": one_of(
            (), ((5,), (9, 10), (END,), (30, 31, 32), *(((a, b)) for a in range(40, 50) for b in range(8, 50)))
        ),
        "stop_sequences": one_of((), (), ((33,), (34, 35), *((a, b) for a in range(8, 20) for b in range(8, 50)))),
    }
    return Settings(**{**drawn, **fixed})


def request(prompt: tuple[int, ...], settings: Settings) -> Request:
    return Request(prompt=prompt, settings=settings)
