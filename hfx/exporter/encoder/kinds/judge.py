"""A language model that re-ranks: a pair's score is the logit of a token in its answer to a template of the pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.checkpoint.pooling import AnswerLogits, make_pooler
from hfx.exporter.encoder.kinds.cross_encoder import CrossEncoder, scores_of
from hfx.exporter.load import head_rows, load_model
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind

if TYPE_CHECKING:
    import torch

CAUSAL_MODEL, CAP = "AutoModelForCausalLM", "final_logit_softcapping"


@dataclass(frozen=True, kw_only=True)
class Judge(CrossEncoder):
    """A re-ranker whose score is the logit of one answer, or its difference from the logit of another answer."""

    name: ClassVar[Kind] = Kind.JUDGE
    why_python: ClassVar[tuple[str, ...]] = ("a template of pairs",)  # without one it is refused

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        pooling, _ = scores_of(checkpoint)
        return isinstance(pooling, AnswerLogits)

    @classmethod
    def pooled(cls) -> dict[str, Any]:
        return {"auto_class": CAUSAL_MODEL}

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        """Return the model without its head, and a pooler with the rows of the head that belong to the answers."""
        assert isinstance(self.pooling, AnswerLogits)
        model: Any = load_model(checkpoint.home, self.auto_class, self.headless)
        capped = getattr(model.config, CAP, None)
        if capped is not None:
            raise CheckpointUnsupported(
                f"The logits are capped ({CAP} {capped}), of which hfx makes no score of a pair.", "Export another one."
            )
        rows = head_rows(model, tokenizer, self.pooling.answers)
        assert rows is not None
        difference = rows[:1] - rows[1:2].sum(dim=0, keepdim=True)
        return model.base_model, make_pooler(self.pooling, checkpoint, difference)
