"""Language models that classify by the first tokens of their answers, compared with transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.labelled_data import read_data
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.exporter.verify import open_published
from hfx.local.encoder import LocalModel
from hfx.manifest import Manifest
from hfx.names import Kind, Task
from tests.attacks.damage import edit_tensors
from tests.rigs.checkpoints.decoder_rankers import CHATML, Ranker, write_decoder
from tests.rigs.checkpoints.published import export_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("least_texts")]

TRIMMED = CHATML.replace("message.content", "message.content | trim")
OF_PARTS = CHATML.replace("message.content", "message.content[0].text")
IN_THE_MIDDLE = (
    "<|im_start|>user\nJudge the text: <BEGIN> {{ messages[-1].content }}\n<END>. Answer with yes or no.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
POLICY = "Judge whether the Document meets the requirements. Note that the answer can only be yes or no."
ANSWERS = ("flagged=yes", "fine=no")
LONGER = ("good=the answer:yes", "bad=the answer:no", "odd=the answer:find")
TEXTS = ["a", "", " a cat \n", "\n\nfind a film", "the cat sat in paris " * 3, "é <|im_end|> ü", "yes", "'s \t x"]


def export(tmp_path: Path, **options: Any) -> tuple[LocalModel, Manifest]:
    manifest = export_checkpoint(
        tmp_path / "model", tmp_path / "repository", name="model", **({"task": Task.TEXT_CLASSIFICATION} | options)
    )
    return LocalModel.open(tmp_path / "repository", "model"), manifest


def expected_scores(
    folder: Path, text: str, system: str | None, answers: tuple[str, ...], shared: str, most: int
) -> list[float]:
    """Return the softmax of the logits of the answers' tokens, by transformers' own template, tokenizer and model."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    messages = [{"role": "system", "content": system}] * (system is not None) + [{"role": "user", "content": text}]
    if "content[0].text" in tokenizer.chat_template:
        messages = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    ids = tokenizer(prompt + shared, add_special_tokens=False)["input_ids"]
    assert len(ids) <= most
    first = [tokenizer(prompt + answer.partition("=")[2], add_special_tokens=False)["input_ids"] for answer in answers]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    scores: list[float] = logits[[each[len(ids)] for each in first]].softmax(0).tolist()
    return scores


@pytest.mark.parametrize(
    ("ranker", "system", "answers", "shared"),
    [
        (Ranker(template=CHATML), POLICY, ANSWERS, ""),
        (Ranker(template=CHATML), None, LONGER, "the answer:"),
        (Ranker("llama", template=TRIMMED), POLICY, ANSWERS, ""),
        (Ranker("gemma2", {"sliding_window": 9, "final_logit_softcapping": 0.5}, OF_PARTS), POLICY, ANSWERS, ""),
        (Ranker("gpt2", {"n_positions": 200}, IN_THE_MIDDLE), None, ANSWERS, ""),
        (Ranker("granite", {"logits_scaling": 3.0}, CHATML), POLICY, ANSWERS, ""),
        (Ranker("mistral", {"sliding_window": 12}, CHATML), POLICY, ANSWERS, ""),
    ],
)
def test_scores_are_those_of_the_answers_first_tokens(
    ranker: Ranker, system: str | None, answers: tuple[str, ...], shared: str, tmp_path: Path
) -> None:
    write_decoder(tmp_path / "model", ranker)
    model, manifest = export(tmp_path, answer=answers, system=system, task=None)
    assert manifest.choices["kind"] == Kind.ANSWER_CLASSIFIER
    assert manifest.task == Task.TEXT_CLASSIFICATION
    labels = [answer.partition("=")[0] for answer in answers]
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"find,{label}\n" for label in labels))
    kind = open_published(tmp_path / "repository", "model").task
    assert read_data(rows, kind, {}).targets == tuple(labels)
    found = model.infer_all([{"text_input": text, "top_k": 9} for text in TEXTS])
    for text, answer in zip(TEXTS, found, strict=True):
        scores = dict(zip(answer["label"], answer["score"], strict=True))
        expected = expected_scores(tmp_path / "model", text, system, answers, shared, ranker.length)
        np.testing.assert_allclose([scores[label] for label in labels], expected, atol=1e-5)
        assert answer["truncated_tokens"] == 0
        assert model.infer({"text_input": text, "top_k": 9})["score"] == answer["score"]
    assert bool(model.encoder.settings.prefix) == (system is not None or ranker.template == IN_THE_MIDDLE)


def test_no_text_changes_the_tokens_before_it(tmp_path: Path) -> None:
    write_decoder(tmp_path / "model", Ranker(template=CHATML))
    model, _ = export(tmp_path, answer=ANSWERS, system=POLICY)
    chance = random.Random(0)
    characters = " \n\t.,'-_<>|/=aeéß中🙂0́\u200d\u00a0" + "imstart"
    texts = ["".join(chance.choices(characters, k=chance.randrange(8))) for _ in range(3000)]
    encoded = model.encode_each([{"text_input": text} for text in texts])
    assert not [text for text, each in zip(texts, encoded, strict=True) if isinstance(each, Exception)]


@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        ("qwen3", {}),
        ("qwen3", {"max_position_embeddings": Ranker().length}),
        ("gpt2", {"n_positions": Ranker().length}),
    ],
)
def test_a_long_text_loses_its_end_and_keeps_the_template(
    model_type: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    """A prompt may be as long as the positions of the model, with padding behind it."""
    write_decoder(tmp_path / "model", Ranker(model_type, sizes, CHATML))
    model, _ = export(tmp_path, answer=ANSWERS, system=POLICY)
    short, long = (model.encode([{"text_input": "find a film " * count}])[0] for count in (1, 500))
    assert long["input_ids"].shape[-1] + len(model.encoder.settings.prefix) >= Ranker().length
    answer = model.infer({"text_input": "find a film " * 500})
    assert answer["truncated_tokens"] > 500
    kept = [each["input_ids"][each["attention_mask"] == 1][-5:].tolist() for each in (short, long)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((), UsageError),
        (("yes",), UsageError),
        (("yes", "yes"), UsageError),
        (("a=yes", "a=no"), UsageError),
        (("=yes", "b=no"), UsageError),
        (("a=", "b=no"), UsageError),
        (tuple(f"{label}=x" for label in range(65)), UsageError),
        (("a=yes", "b=yes a"), CheckpointUnsupported),
        (("a=yes", "b=yes"), CheckpointUnsupported),
    ],
)
def test_answers_that_can_not_be_told_apart_are_refused(
    answers: tuple[str, ...], error: type[Exception], tmp_path: Path
) -> None:
    write_decoder(tmp_path / "model", Ranker(template=CHATML))
    with pytest.raises(error):
        export(tmp_path, answer=answers)
    assert not (tmp_path / "repository" / "model").exists()


@pytest.mark.parametrize(
    ("template", "system"),
    [
        ("", None),
        ("{{ messages[0].content | upper }}", None),
        ("{{ messages[0].content }}{{ messages[0].content }}", None),
        ("no turn of the user", None),
        ("{{ raise_exception('no') }}", None),
        (IN_THE_MIDDLE, POLICY),
    ],
)
def test_templates_without_the_turns_are_refused(template: str, system: str | None, tmp_path: Path) -> None:
    write_decoder(tmp_path / "model", Ranker(template=template))
    options = ExportOptions(task=Task.TEXT_CLASSIFICATION, answer=ANSWERS, system=system)
    with pytest.raises(CheckpointUnsupported, match="chat template"):
        make_plan(open_checkpoint(str(tmp_path / "model")), options)


def test_a_policy_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    write_decoder(tmp_path / "model", Ranker(template=CHATML))
    with pytest.raises(CheckpointUnsupported, match="no room"):
        export(tmp_path, answer=ANSWERS, system="find a film " * 400)


def test_a_head_that_is_more_than_products_is_refused(tmp_path: Path) -> None:
    write_decoder(tmp_path / "model", Ranker("phi", template=CHATML))
    edit_tensors(tmp_path / "model", lambda kept: kept | {"lm_head.bias": torch.randn(kept["lm_head.bias"].shape)})
    with pytest.raises(CheckpointUnsupported, match="more than products"):
        export(tmp_path, answer=ANSWERS)
