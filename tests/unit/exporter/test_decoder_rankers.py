"""Decoders as re-rankers score like sentence-transformers' CrossEncoder and like Qwen3-Reranker's model card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.encoder.checkpoint.pair_templates import LANGUAGE_MODELS
from hfx.exporter.encoder.kinds.cross_encoder import CrossEncoder
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.plan import Plan
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.names import Task
from tests.attacks.damage import edit_json
from tests.rigs.checkpoints.decoder_rankers import (
    CHAT_TEMPLATE,
    CONTENT,
    INSTRUCTION,
    PLAIN_CHAT,
    PREFIX,
    QWEN_TEMPLATE,
    SUFFIX,
    Ranker,
    write_classifier,
    write_decoder,
    write_logit_ranker,
)
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import scores
from tests.rigs.checkpoints.sentence_models import TEXTS
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PAIRS = [(TEXTS[(3 * i) % 5], text) for i, text in enumerate(TEXTS)] + [
    ("<|im_end|>", "a<|endoftext|>"),
    ("the dog ran in a good film. " * 30, "a cat"),  # of which the template's end alone is kept
    ("{query} {}", "<Document>: {{ a }}\n\n"),
]
IDENTITY = {"activation_fn": torch.nn.Identity()}
PROMPTS = {"prompts": {"film": "find a film", "odd": " {}\n<|im_end|>", "none": ""}}
WINDOW = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1, "tie_word_embeddings": True}
GEMMA = {"use_bidirectional_attention": False, "tie_word_embeddings": True}
CHAT = {"transformer": {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}}
RANKERS: dict[str, tuple[Ranker, dict[str, Any]]] = {
    "qwen": (Ranker(), PROMPTS),
    "one-logit": (Ranker(template=CHAT_TEMPLATE), {"both": False, **IDENTITY, **CHAT}),
    "window-tied": (Ranker(config=WINDOW), {**PROMPTS, "default_prompt_name": "film", **IDENTITY}),
    "gemma": (Ranker("gemma3_text", GEMMA), {}),
    "qwen2": (Ranker("qwen2"), PROMPTS),
}
CLASSIFIERS: dict[str, tuple[Ranker, int]] = {
    "templated": (Ranker(), 1),
    "plain": (Ranker(template=""), 1),
    "several-labels": (Ranker(config=WINDOW | {"tie_word_embeddings": False}), 3),
    "llama": (Ranker("llama", template=""), 2),
}


def plan_of(folder: Path, **options: Any) -> Plan:
    return make_plan(open_checkpoint(str(folder)), ExportOptions(repository=folder / "repository", **options))


def check(reference: Any, model: LocalModel, pairs: list[tuple[str, str]], **chosen: Any) -> None:
    """Check that scores equal those of `predict`, alone and in a left-padded batch, with the same bits in any batch."""
    found = scores(model, pairs, **chosen)
    expected = np.array([reference.predict([pair], **chosen)[0] for pair in pairs])
    assert len(np.unique(expected.round(4), axis=0)) >= 9
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, reference.predict(pairs, **chosen), rtol=1e-5, atol=1e-5)
    assert [scores(model, [pair], **chosen)[0] for pair in pairs] == found
    assert scores(model, pairs[::-1], **chosen) == found[::-1]


@pytest.mark.parametrize("name", few(RANKERS, "qwen"))
def test_scores_of_two_logits_are_those_of_predict(tmp_path: Path, name: str) -> None:
    ranker, settings = RANKERS[name]
    reference = write_logit_ranker(tmp_path, ranker, **settings)
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert (manifest.task, manifest.choices["tokenizer"]["compiled"]) == (Task.TEXT_RANKING, False)
    model = LocalModel.open(tmp_path / "repository", "model")
    check(reference, model, PAIRS)
    check(reference, model, PAIRS, prompt="which one has a cat? {prompt}")
    for prompt in reference.prompts:
        check(reference, model, PAIRS, prompt_name=prompt)
    answers = model.infer_all([{"query": query, "text_input": text} for query, text in PAIRS])
    assert sum(each["truncated_tokens"] > 0 for each in answers) >= 2


def card_scores(folder: Path, pairs: list[tuple[str, str]], instruction: str, longest: int) -> list[float]:
    """Return the scores by the model card of Qwen3-Reranker, each pair alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    no, yes = tokenizer.convert_tokens_to_ids(["no", "yes"])
    before, behind = (tokenizer.encode(text, add_special_tokens=False) for text in (PREFIX, SUFFIX))
    results = []
    for query, text in pairs:
        content = CONTENT.format(instruction, query, text)
        room = longest - len(before) - len(behind)
        ids = tokenizer(content, truncation="longest_first", max_length=room)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + ids + behind])).logits[0, -1]
        results.append(float(torch.log_softmax(torch.stack([logits[no], logits[yes]]), 0)[1].exp()))
    return results


def test_a_folder_without_files_of_the_library_scores_as_its_model_card(tmp_path: Path) -> None:
    """It has the card's template where its own is that of chats, or where it has none."""
    folder, tasks = tmp_path / "model", []
    for template in (QWEN_TEMPLATE, "", PLAIN_CHAT):
        shutil.rmtree(folder, ignore_errors=True)
        write_decoder(folder, Ranker(template=template))
        assert isinstance(plan_of(folder), GeneratorPlan)
        tasks.append(plan_of(folder, task=Task.TEXT_RANKING).kind)
    assert tasks[0] == tasks[1] == tasks[2]
    export_checkpoint(folder, tmp_path / "repository", name="model", task=Task.TEXT_RANKING)
    model = LocalModel.open(tmp_path / "repository", "model")
    for instruction, chosen in ((INSTRUCTION, {}), ("find a film", {"prompt": "find a film"})):
        expected = card_scores(folder, PAIRS, instruction, Ranker().length)
        found = scores(model, PAIRS, **chosen)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        assert [scores(model, [pair], **chosen)[0] for pair in PAIRS] == found


@pytest.mark.parametrize("name", few(CLASSIFIERS, "several-labels"))
def test_heads_score_the_last_token_as_predict(tmp_path: Path, name: str) -> None:
    ranker, labels = CLASSIFIERS[name]
    reference = write_classifier(tmp_path, ranker, labels)
    plan = plan_of(tmp_path / "model")
    assert (plan.kind.task, bool(plan.notes)) == (Task.TEXT_RANKING, not ranker.template)
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    model = LocalModel.open(tmp_path / "repository", "model")
    pairs = PAIRS if ranker.template else [pair for pair in PAIRS if any(pair)]
    check(reference, model, pairs)
    if ranker.template:
        check(reference, model, pairs, prompt="find a film")


def test_decoders_classify_texts_as_the_checkpoint(tmp_path: Path) -> None:
    from transformers import pipeline

    folder = tmp_path / "model"
    write_decoder(folder, Ranker(), "AutoModelForSequenceClassification")
    assert export_checkpoint(folder, tmp_path / "repository", name="model").task == Task.TEXT_CLASSIFICATION
    model = LocalModel.open(tmp_path / "repository", "model")
    texts = [text for text in TEXTS if text] + ["a<|endoftext|>", "<|endoftext|>"]
    found = model.infer_all([{"text_input": text, "top_k": 3} for text in texts])
    expected = pipeline("text-classification", str(folder))(texts, top_k=None, truncation=True, batch_size=1)
    for answer, labels in zip(found, expected, strict=True):
        assert answer["label"] == [each["label"] for each in labels]
        np.testing.assert_allclose(answer["score"], [each["score"] for each in labels], rtol=0, atol=1e-5)


REFUSED = {
    "the text is not last": QWEN_TEMPLATE.replace("{{ document }}", "") + "{{ document }} {{ query }}",
    "the text stands twice": QWEN_TEMPLATE + "{{ document }}",
    "a text is trimmed": QWEN_TEMPLATE.replace("{{ query }}", "{{ query | trim }}"),
    "a text is cut": QWEN_TEMPLATE.replace("{{ document }}", "{{ document[:19] }}"),
    "a template loops": "{% for a in range(10 ** 5) %}{% for b in range(10 ** 5) %}{% endfor %}{% endfor %}",
    "a template fails": "{{ raise_exception('no') }}",
    "a text is left out": PLAIN_CHAT,
}


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_are_not_texts_around_the_fields_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfx.exporter.encoder.checkpoint.pair_templates.SECONDS", 1.0)
    write_decoder(tmp_path, Ranker("gemma3_text", template=REFUSED[name]))
    with pytest.raises(CheckpointUnsupported, match="chat template"):
        plan_of(tmp_path, task=Task.TEXT_RANKING)


def test_settings_that_would_change_the_scores_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_logit_ranker(tmp_path, Ranker())
    assert plan_of(folder).kind.task == Task.TEXT_RANKING
    edit_json(folder / "tokenizer_config.json", truncation_side="left")
    with pytest.raises(CheckpointUnsupported, match="truncation_side left"):
        plan_of(folder)
    edit_json(folder / "tokenizer_config.json", truncation_side="right")
    for kwargs in ({"chat_template": {"max_length": 9}}, {"text": {"max_length": 9}}, {"chat_template": 3}, 3):
        edit_json(folder / "sentence_bert_config.json", processing_kwargs=kwargs)
        with pytest.raises(CheckpointUnsupported, match="processing_kwargs"):
            plan_of(folder)
    edit_json(folder / "sentence_bert_config.json", processing_kwargs={})
    for ids in ({"true_token_id": "yes"}, {"true_token_id": None}, {"false_token_id": -1}, {"false_token_id": True}):
        edit_json(folder / "1_LogitScore/config.json", **{"true_token_id": 1, "false_token_id": 2, **ids})
        with pytest.raises(CheckpointCorrupt, match="is not a token id"):
            plan_of(folder)
    edit_json(folder / "1_LogitScore/config.json", module_input_name="logits")
    with pytest.raises(CheckpointUnsupported, match="module_input_name"):
        plan_of(folder)


@pytest.mark.parametrize(
    ("ranker", "ids", "match"),
    [
        (Ranker(), {"true_token_id": 100_000}, "the token 100000"),
        (Ranker("gemma3_text", {**GEMMA, "final_logit_softcapping": 30.0}), {}, "capped"),
    ],
)
def test_logits_that_the_model_does_not_have_are_refused(tmp_path: Path, ranker: Ranker, ids: Any, match: str) -> None:
    write_logit_ranker(tmp_path, ranker)
    edit_json(tmp_path / "model/1_LogitScore/config.json", **ids)
    with pytest.raises(CheckpointUnsupported, match=match):
        export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")


def test_the_documented_template_is_that_of_the_model_card(tmp_path: Path) -> None:
    documents = (Path(__file__).parents[3] / "docs/checkpoints.md").read_text(encoding="utf-8")
    [template] = [block for block in documents.split("```text\n") if "<|im_start|>" in block]
    write_decoder(tmp_path, Ranker(template=""), "AutoModelForSequenceClassification", num_labels=1)
    plan = plan_of(tmp_path, task=Task.TEXT_RANKING)
    assert isinstance(plan, EncoderPlan) and plan.details()["template"] is None
    (tmp_path / "chat_template.jinja").write_text(template.split("```")[0], encoding="utf-8")
    plan = plan_of(tmp_path, task=Task.TEXT_RANKING)
    assert isinstance(plan.kind, CrossEncoder) and plan.kind.template == LANGUAGE_MODELS["qwen3"] and not plan.notes
