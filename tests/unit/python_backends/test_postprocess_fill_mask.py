"""Filled masks equal those of transformers' FillMaskPipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import pipeline

from hfx.exporter.encoder.kinds.masks import Masks
from hfx.exporter.source import Checkpoint
from hfx.python_backends.errors import InvalidInput
from hfx.python_backends.inputs import strings
from hfx.python_backends.tasks.fill_mask import LONGEST_TARGET, MOST_MASKS, MOST_TARGETS, MOST_TOP_K
from hfx.python_backends.tasks.postprocessing import Postprocessor
from tests import zoo
from tests.rigs.checkpoints.encoder_line import (
    EDGE_TEXTS,
    check_equal_fills,
    encoded,
    encoder_for,
    postprocessor_for,
    random_bert,
    run_torch,
)
from tests.zoo import tokenization

KINDS = ("bert", "bert-cased", "mpnet", "roberta", "xlm-roberta", "albert", "deberta-v2")


class Line:
    """A random masked language model with a tokenizer of a kind, served by hfx and in transformers' pipeline."""

    def __init__(self, kind: str, folder: Path, cleans_up: bool = False) -> None:
        texts = [example.text for example in zoo.train("topics", 200)]
        self.tokenizer = tokenization.train(kind, texts, 500, 128)
        self.tokenizer.clean_up_tokenization_spaces = cleans_up
        self.mask = self.tokenizer.mask_token
        self.model = random_bert("ForMaskedLM", self.tokenizer, scale=0.5, seed=1, pad_token_id=None)
        self.pipe: Any = pipeline("fill-mask", model=self.model, tokenizer=self.tokenizer, device="cpu")
        self.encoder = encoder_for(self.tokenizer, "fill-mask", folder)
        self.last_step = opened(folder, self.tokenizer)

    def tensors(self, text: str) -> dict[str, Any]:
        """Return the inputs of the last step: the logits of the masks, as the net gives them."""
        fed = encoded(self.encoder, [text])
        logits = run_torch(self.model, fed, ("logits",))["logits"]
        masks = np.flatnonzero(fed["input_ids"][0] == self.tokenizer.mask_token_id)
        return fed | {"logits": logits[:, masks] if masks.size else logits[:, :1]}

    def fills(self, text: str, **settings: Any) -> Any:
        """Return the fills in the pipeline's format: a list, or one list for each of several masks."""
        [[raw]] = self.last_step.answer({**self.tensors(text), **settings})["fills"]
        rows = json.loads(raw)
        return rows[0] if len(rows) == 1 else rows


def opened(folder: Path, tokenizer: Any) -> Postprocessor:
    checkpoint = Checkpoint("", folder, None, {"transformers_version": transformers.__version__}, ())
    return postprocessor_for(folder, task="fill-mask", **Masks().tokenizer_settings(tokenizer, checkpoint))


@pytest.mark.parametrize("cleans_up", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_fills_equal_those_of_the_pipeline(kind: str, cleans_up: bool, tmp_path: Path) -> None:
    line = Line(kind, tmp_path, cleans_up)
    texts = [*(f"{text[:60]} {line.mask}" for text in EDGE_TEXTS), f"{line.mask}. It isn't {line.mask}, is it ?"]
    for text in texts:
        check_equal_fills(line.fills(text), line.pipe(text))
        check_equal_fills(line.fills(text, top_k=np.array([[9]], np.int32)), line.pipe(text, top_k=9))


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_scored_as_the_pipeline_scores_them(kind: str, tmp_path: Path) -> None:
    """The targets are tokens of the vocabulary, words whose first token counts, and one target twice."""
    line = Line(kind, tmp_path)
    text = f"Anna went to {line.mask} by train."
    for targets in (["train"], ["Oslo", "garden", "supercalifragilistic", "garden"], [line.mask, "a"]):
        check_equal_fills(line.fills(text, targets=strings(*targets).reshape(1, -1)), line.pipe(text, targets=targets))


def test_padding_is_no_part_of_a_text_where_the_tokenizer_has_no_token_for_it(tmp_path: Path) -> None:
    line = Line("roberta", tmp_path)
    line.tokenizer.pad_token = None
    line.encoder = encoder_for(line.tokenizer, "fill-mask", tmp_path, pad_id=0)  # "<s>", as an export has it
    line.last_step = opened(tmp_path, line.tokenizer)
    for text in ("<mask> <s>", "a <mask> b<mask>"):
        assert len(line.tensors(text)["input_ids"][0]) > len(line.tokenizer(text)["input_ids"])
        check_equal_fills(line.fills(text), line.pipe(text))


def test_invalid_masks_targets_and_top_k_are_refused(tmp_path: Path) -> None:
    line = Line("bert", tmp_path)
    with pytest.raises(InvalidInput, match=r"no mask token \(\[MASK\]\)"):
        line.fills("Anna went to Oslo.")
    with pytest.raises(InvalidInput, match="17 mask tokens; at most 16"):
        line.fills("[MASK] " * (MOST_MASKS + 1))
    with pytest.raises(InvalidInput, match="targets has no token"):
        line.fills("[MASK]", targets=strings(" ").reshape(1, -1))
    with pytest.raises(InvalidInput, match="top_k"):
        line.fills("[MASK]", top_k=np.array([[0]], np.int32))
    with pytest.raises(InvalidInput, match=f"top_k must be at most {MOST_TOP_K}"):
        line.fills("[MASK]", top_k=np.array([[2**31 - 1]], np.int32))
    for targets, refusal in (
        (["a"] * (MOST_TARGETS + 1), f"{MOST_TARGETS + 1} texts; at most {MOST_TARGETS}"),
        (["a" * (LONGEST_TARGET + 1)], f"a text of {LONGEST_TARGET + 1} bytes"),
    ):
        with pytest.raises(InvalidInput, match=refusal):
            line.fills("[MASK]", targets=strings(*targets).reshape(1, -1))


def test_the_largest_allowed_settings_work(tmp_path: Path) -> None:
    line = Line("bert", tmp_path)
    check_equal_fills(
        line.fills("[MASK]", top_k=np.array([[MOST_TOP_K]], np.int32)), line.pipe("[MASK]", top_k=MOST_TOP_K)
    )
    targets = ["train", *["a"] * (MOST_TARGETS - 2), "b" * LONGEST_TARGET]
    check_equal_fills(
        line.fills("[MASK]", targets=strings(*targets).reshape(1, -1)), line.pipe("[MASK]", targets=targets)
    )
