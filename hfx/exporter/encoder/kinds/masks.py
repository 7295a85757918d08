"""Fill-mask: the tokens that a masked language model writes in place of each mask token of a text.

The net computes its head for the mask tokens only: logits for all tokens would take a whole vocabulary for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.kinds.answers import share_equal
from hfx.exporter.encoder.kinds.classifier import TIE
from hfx.exporter.encoder.kinds.kind import (
    Answer,
    Comparison,
    Config,
    EncoderKind,
    Request,
    Settings,
)
from hfx.exporter.source import Checkpoint
from hfx.exporter.transformers_versions import cleans_up
from hfx.names import Kind, Task
from hfx.python_backends.tasks.fill_mask import MOST_MASKS
from hfx.repository.config_pbtxt import TensorSpec
from hfx.tasks.views import MASKED, fills

if TYPE_CHECKING:
    import torch

BATCH_BYTES = 128 << 20  # limits the logits of a batch; tritonserver and the last step hold several copies of them


@dataclass(frozen=True, kw_only=True)
class Masks(EncoderKind):
    """The most probable tokens of each mask of a text."""

    name: ClassVar[Kind] = Kind.MASKS
    task: ClassVar[Task] = Task.FILL_MASK
    architectures: ClassVar[tuple[str, ...]] = ("ForMaskedLM",)
    spells_tokens: ClassVar[bool] = True
    outputs: ClassVar[tuple[TensorSpec, ...]] = (TensorSpec(names.FILLS, "TYPE_STRING", (1,)),)
    postprocess_reads: ClassVar[tuple[str, ...]] = (names.INPUT_IDS, names.ATTENTION_MASK, names.TOP_K, names.TARGETS)
    why_python: ClassVar[tuple[str, ...]] = (str(task),)

    auto_class: str = "AutoModelForMaskedLM"

    def most_rows(self, config: Config, max_length: int) -> int | None:
        """Return how many rows of float32 logits [rows, masks, vocabulary] fit BATCH_BYTES."""
        return max(1, BATCH_BYTES // (4 * MOST_MASKS * vocabulary(config)))

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        """Return one logit for each mask and each token of the vocabulary."""
        return (TensorSpec(names.LOGITS, "TYPE_FP32", (-1, int(config["vocab_size"]))),)

    def tokenizer_settings(self, tokenizer: Any, checkpoint: Checkpoint) -> Settings:
        """Return the mask (as text for the playground), padding, and whether to remove spaces before punctuation."""
        return {
            "mask_id": tokenizer.mask_token_id,
            "mask_token": tokenizer.mask_token,
            "pad_id": tokenizer.pad_token_id,
            "cleans_up": cleans_up(tokenizer, checkpoint),
        }

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        """Load the model, and restrict its head to the mask tokens."""
        model, pooler = super().load_model(checkpoint, tokenizer)
        prepare(model, tokenizer)
        return model, pooler

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return each text after a mask; every third text has a mask on both sides."""
        return [
            {names.TEXT_INPUT: f"{MASKED} {text}" + (f" {MASKED}" if i % 3 == 0 else "")}
            for i, text in enumerate(texts)
        ]

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Compare the best token of each mask; the drift is the largest difference of their scores."""
        pairs = [*zip(fills(reference), fills(answer), strict=True)]
        drift, same, tie = 0.0, True, True
        for expected, found in pairs:
            scores = {each["token"]: each["score"] for each in expected}
            best, token = expected[0], found[0]["token"]
            drift = max(drift, abs(best["score"] - found[0]["score"]))
            same = same and token == best["token"]
            tie = tie and best["score"] - scores.get(token, float("-inf")) <= TIE
        return Comparison(same, drift, tie and not same)

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        """Return the share of texts whose first mask's best token is the target, ignoring outer white space."""
        return share_equal((fills(answer)[0][0]["token_str"] for answer in answers), targets)


def prepare(model: Any, tokenizer: Any) -> None:
    """Restrict the head of `model` to the mask tokens: logits are [rows, masks, vocabulary], with at least one mask.

    A row with fewer masks than another row has the logits of its own first token in the remaining places.
    Raises CheckpointUnsupported if the tokenizer has no mask token.
    """
    mask_id = tokenizer.mask_token_id
    if mask_id is None:
        raise CheckpointUnsupported("The checkpoint's tokenizer has no mask token.", "Pass another --task.")

    def keep_masks(module: Any, arguments: Any, named: Any, output: Any) -> Any:
        import torch

        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        is_mask = ids.eq(mask_id)
        number = is_mask.long().cumsum(dim=1)
        most = number[:, -1].max().clamp(1, MOST_MASKS)
        wanted = torch.arange(1, most + 1, device=ids.device)
        chosen = is_mask[:, None, :] & number[:, None, :].eq(wanted[None, :, None])  # [rows, masks, tokens]
        places = chosen.long().argmax(dim=2)
        hidden = output[0]
        kept = hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        if isinstance(output, tuple):
            return (kept, *output[1:])
        output.last_hidden_state = kept
        return output

    model.mask_token_id = mask_id  # so that the traced example has mask tokens
    getattr(model, model.base_model_prefix).register_forward_hook(keep_masks, with_kwargs=True)


def vocabulary(config: Config) -> int:
    """Return the number of tokens in the vocabulary. Raises CheckpointUnsupported for a config without it."""
    size = config.get("vocab_size")
    if type(size) is not int or size < 1:
        raise CheckpointUnsupported(f"vocab_size in config.json is {size!r}.", "It must be the number of tokens.")
    return size
