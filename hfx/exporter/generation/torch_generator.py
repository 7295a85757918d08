"""The checkpoint's model in torch: transformers' generate and plain forwards on token ids, in batches."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.fields import CLASS_IDS
from hfx.exporter.generation.languages import read_languages
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import Ids
from hfx.exporter.generation.settings import task_fields
from hfx.exporter.progress import counted
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.transformers_versions import cleans_up, fill_class_ids, fill_unset, use_fused_attention
from hfx.python_backends.generation.detokenizer import StopStrings

if TYPE_CHECKING:
    import torch

# The limits of one run. Its keys and values, or its logits, take at most RUN_SHARE of the memory of the weights, or
# LEAST_RUN_BYTES if that is more. More than ROWS_A_RUN rows are no faster.
RUN_SHARE = 0.05
LEAST_RUN_BYTES = 32 << 20
ROWS_A_RUN = 128
# The linears of K and V in the decoder's self attention of transformers' BART and T5.
KEYS_AND_VALUES = re.compile(r"(self_attn\.[kv]_proj|SelfAttention\.[kv])$")
Sources = Mapping[Ids, "torch.Tensor"]  # prompt -> the encoder's output, [tokens, hidden]
NO_SOURCES: Sources = {}


@dataclass(frozen=True)
class TorchGenerator:
    """A torch model with its checkpoint's settings for a task, as in transformers' pipelines."""

    model: Any
    tokenizer: Any
    settings: Any  # transformers' GenerationConfig
    start: Ids  # the tokens that an encoder-decoder's decoder begins with; empty for a decoder
    cleans_up: bool  # whether texts lose the spaces before punctuation
    stop_strings: Sequence[str] = ()  # texts end before them; ids do not

    @classmethod
    def open(cls, plan: GeneratorPlan, tokenizer: Any) -> TorchGenerator:
        """Load the checkpoint of `plan`."""
        from hfx.exporter.load import load_model

        model: Any = load_model(plan.checkpoint, plan.kind.auto_class, headless=False)
        use_fused_attention(model)
        fill_class_ids(model, CLASS_IDS, plan.checkpoint)
        if plan.checkpoint.model_type == "m2m_100":
            model.get_decoder().embed_positions.register_forward_hook(_positions_as_generated)
        settings = copy.deepcopy(model.generation_config)
        settings.update(**task_fields(plan.checkpoint, plan.kind)[0])
        if settings.pad_token_id in (None, -1):
            settings.pad_token_id = plan.settings.pad_token_id
        languages = read_languages(plan.checkpoint, tokenizer, plan.settings)
        if languages and languages.forced_bos_id is not None:
            settings.forced_bos_token_id = languages.forced_bos_id
        fill_unset(settings)
        settings.stop_strings = None  # generate() would look for them in the ids, unlike the engine
        # generate() takes unset fields from the model's own settings, which must not count here.
        model.generation_config = type(settings)()
        return cls(
            model,
            tokenizer,
            settings,
            plan.settings.decoder_start_token_ids,
            cleans_up(tokenizer, plan.checkpoint),
            plan.settings.defaults.get("stop_words", ()),
        )

    @property
    def _can_cache(self) -> bool:
        """Whether generate() can use a cache: transformers sizes it by a T5's encoder layers, not its decoder's."""
        config = self.model.config
        return getattr(config, "num_decoder_layers", None) in (None, config.num_hidden_layers)

    @property
    def _run_bytes(self) -> int:
        return max(LEAST_RUN_BYTES, int(RUN_SHARE * 4 * self.parameters))

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def encode(self, prompts: Sequence[Ids]) -> Sources:
        """Return the encoder's output for each prompt, for `generate` and `logits`; empty without an encoder."""
        import torch

        sources: dict[Ids, torch.Tensor] = {}
        for chosen in _runs([len(prompt) for prompt in prompts], self._cached_tokens()) if self.start else ():
            padded, mask = _padded([prompts[i] for i in chosen], self.settings.pad_token_id, left=False)
            feed = {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}
            with torch.inference_mode():
                hidden = self.model.get_encoder()(**feed).last_hidden_state
            sources |= {prompts[i]: hidden[row, : len(prompts[i])].clone() for row, i in enumerate(chosen)}
        return sources

    def generate(
        self, prompts: Sequence[Ids], sources: Sources = NO_SOURCES, **changes: Any
    ) -> tuple[list[Ids], list[float]]:
        """Return the new ids of each prompt, and the score of each; without beams, scores are 0."""
        import torch

        settings = copy.deepcopy(self.settings)
        settings.update(**changes, return_dict_in_generate=True, use_cache=self._can_cache)
        settings.output_scores = settings.num_beams > 1  # no sequences_scores without
        ids: list[Ids] = [()] * len(prompts)
        scores = [0.0] * len(prompts)
        for chosen in counted([*self._batches(prompts, settings)], "batches of texts"):
            padded, mask = _padded([prompts[i] for i in chosen], settings.pad_token_id, left=not self.start)
            with torch.inference_mode(), quiet_libraries():
                found = self.model.generate(
                    torch.from_numpy(padded),
                    attention_mask=torch.from_numpy(mask),
                    generation_config=settings,
                    **_encoded([prompts[i] for i in chosen], sources),
                )
            begin = len(self.start) or padded.shape[1]
            for row, index in enumerate(chosen):
                ids[index] = _without_padding(found.sequences[row, begin:].tolist(), settings)
                scores[index] = float(found.sequences_scores[row]) if settings.num_beams > 1 else 0.0
        return ids, scores

    def logits(
        self, prompts: Sequence[Ids], continuations: Sequence[Ids], sources: Sources = NO_SOURCES
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (index, logits [len(continuation), vocabulary]) of each prompt, by teacher forcing."""
        lengths = [len(prompt) + len(tokens) for prompt, tokens in zip(prompts, continuations, strict=True)]
        runs = [*_runs(lengths, self._run_bytes // (4 * int(self.model.config.vocab_size)))]
        for chosen in counted(runs, "batches of logits"):
            found = self._forward([prompts[i] for i in chosen], [continuations[i] for i in chosen], sources)
            while found:  # popped, so that each tensor can be freed before the next is used
                yield chosen[len(chosen) - len(found)], found.pop(0)

    def logits_at(
        self, source: Ids, inputs: Ids, places: Sequence[int]
    ) -> tuple[torch.Tensor, NDArray[np.float32] | None]:
        """Return the logits [places, vocabulary] behind the `places` of a decoder's `inputs`.

        With a `source`, the second value holds the keys and values [2 * layers, inputs, heads * head_dim] of the inputs
        in the decoder's self attention, by layer; otherwise it is None.
        """
        import torch

        kept: list[NDArray[np.float32]] = []
        feed = {"decoder_input_ids" if source else "input_ids": torch.tensor([inputs])}
        # Only the rows of `places` go through the head: all rows would be 200 MB of logits for a thousand tokens.
        hooks = [self.model.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0][:, places],))]
        if source:
            feed["input_ids"] = torch.tensor([source])
            for name, linear in self.model.get_decoder().named_modules():
                if KEYS_AND_VALUES.search(name):
                    hooks.append(linear.register_forward_hook(lambda _, given, found: kept.append(found[0].numpy())))
        try:
            with torch.inference_mode():
                logits: torch.Tensor = self.model(**feed, use_cache=False).logits[0]
        finally:
            for hook in hooks:
                hook.remove()
        return logits, np.stack(kept) if kept else None

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids as transformers' pipelines do, up to the first stop string."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        text = str(self.tokenizer.clean_up_tokenization(text)) if self.cleans_up else text
        stops = StopStrings(self.stop_strings)
        return stops.push(text) + stops.finish()

    def _forward(self, prompts: Sequence[Ids], continuations: Sequence[Ids], known: Sources) -> list[torch.Tensor]:
        import torch

        if self.start:
            sources, mask = _padded(prompts, self.settings.pad_token_id, left=False)
            inputs, _ = _padded([(*self.start, *tokens[:-1]) for tokens in continuations], 0, left=False)
            feed = {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": inputs}
            first = [len(self.start) - 1] * len(prompts)
        else:
            inputs, _ = _padded([(*p, *t[:-1]) for p, t in zip(prompts, continuations, strict=True)], 0, left=False)
            feed = {"input_ids": inputs}  # pads come last, and the tokens before them don't attend to them
            first = [len(prompt) - 1 for prompt in prompts]
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(value) for name, value in feed.items()}
            logits = self.model(**tensors, **_encoded(prompts, known)).logits
        return [
            logits[row, begin : begin + len(tokens)]
            for row, (begin, tokens) in enumerate(zip(first, continuations, strict=True))
        ]

    def _batches(self, prompts: Sequence[Ids], settings: Any) -> Iterator[list[int]]:
        """Yield prompts that can share a run.

        Some settings look back at the prompt, and would count pads before it as its tokens; such prompts share a run
        only if they have the same length.
        """
        looks_back = settings.repetition_penalty not in (None, 1.0) or settings.no_repeat_ngram_size
        alike = bool(looks_back and not self.start)
        groups: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            groups.setdefault(len(prompt) if alike else 0, []).append(index)
        beams = int(settings.num_beams or 1)
        sizes, tokens = [beams * len(prompt) for prompt in prompts], self._cached_tokens()
        for members in groups.values():
            for run in _runs([sizes[i] for i in members], tokens, self._rows(settings) // beams):
                yield [members[i] for i in run]

    def _rows(self, settings: Any) -> int:
        """Return the number of rows of a run. With beams, generate() holds the scores of every step until the end."""
        if settings.num_beams == 1:
            return ROWS_A_RUN
        scores = 4 * int(self.model.config.vocab_size) * int(settings.max_new_tokens)
        return min(ROWS_A_RUN, self._run_bytes // scores)

    def _cached_tokens(self) -> int:
        """Return how many tokens' keys and values a run may hold; each beam has a copy of an encoder's."""
        config = self.model.config
        layers = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None)
        width = int(layers or config.num_hidden_layers) * int(config.hidden_size)
        return self._run_bytes // (2 * 4 * width)


def _positions_as_generated(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Return M2M100's positions of tokens behind a pad as in generate(), which runs token by token and counts the pad.

    A forward of all tokens does not count the pad.
    """
    import torch

    ids, _, past = inputs
    places = torch.arange(1, ids.shape[1] + 1) + past
    found: torch.Tensor = module.weights[places * ids.ne(module.padding_idx) + module.padding_idx].to(output.dtype)
    return found


def _runs(sizes: Sequence[int], tokens: int, most: int = ROWS_A_RUN) -> Iterator[list[int]]:
    """Yield runs of indices, by size: at most `most` with at most `tokens` tokens, pads included, but at least one."""
    run: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        if run and (sizes[index] * (len(run) + 1) > tokens or len(run) >= most):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _padded(sequences: Sequence[Ids], pad: int, left: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return padded ids [rows, longest], and a mask that is 1 for ids that are no padding."""
    width = max(map(len, sequences))
    ids = np.full((len(sequences), width), pad, np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(width - len(sequence), width) if left else slice(0, len(sequence))
        ids[row, place] = sequence
        mask[row, place] = 1
    return ids, mask


def _encoded(prompts: Sequence[Ids], sources: Sources) -> dict[str, Any]:
    """Return the keyword argument with the encoder's output for `prompts`; empty if `sources` is empty."""
    if not sources:
        return {}
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    hidden = torch.nn.utils.rnn.pad_sequence([sources[prompt] for prompt in prompts], batch_first=True)
    return {"encoder_outputs": BaseModelOutput(last_hidden_state=hidden)}


def _without_padding(ids: list[int], settings: Any) -> Ids:
    """Return the ids up to and including the first end token; the rest is padding."""
    ends = settings.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    for place, token in enumerate(ids):
        if token in ends:
            return tuple(ids[: place + 1])
    return tuple(ids)
