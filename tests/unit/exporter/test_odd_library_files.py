"""Unusual files of sentence-transformers give the answers of its encode and predict, or a refusal with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.kinds.cross_encoder import CrossEncoder
from hfx.exporter.encoder.plan import EncoderPlan, make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.names import Task
from tests.attacks.damage import DROPPED, edit_json
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import answers, published
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    base,
    dense,
    furthest,
    normalize,
    pooling,
    write_cross_encoder,
    write_embedder,
    write_sparse_encoder,
)
from tests.rigs.checkpoints.sentence_poolings import check_pooling
from tests.rigs.machine.tiers import full, thinned

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PROMPTS = {"prompts": {"query": "the dog: ", "passage": "A CAT? "}, "default_prompt_name": "query"}
TRANSFORMER, LIBRARY = "sentence_bert_config.json", "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
IDENTITY, FIELD = "torch.nn.modules.linear.Identity", "activation_fn"
ACTIVATIONS = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}  # torch's names, and hfx's
PAIRS = [(TEXTS[(3 * i) % 5], text) for i, text in enumerate(TEXTS)]
Change = Callable[[Path], Any]


def plan_of(folder: Path, **options: Any) -> EncoderPlan:
    return make_encoder_plan(open_checkpoint(str(folder)), ExportOptions(**options))


def edit(name: str, **fields: Any) -> Change:
    """Return a change of fields of a file."""
    return lambda folder: edit_json(folder / name, **fields)


def rewrite(name: str, **fields: Any) -> Change:
    """Return a change that replaces a file by one with these fields."""
    return lambda folder: (folder / name).write_text(json.dumps(fields))


def without_modules(folder: Path) -> None:
    """Make a folder like transformers' own, with the library's other files in it."""
    (folder / "modules.json").unlink()


def all_of(*changes: Change) -> Change:
    """Return a change that makes these changes in order."""
    return lambda folder: [change(folder) for change in changes]


def with_head(name: str) -> Change:
    """Return a change to another class of transformers."""

    def change(folder: Path) -> None:
        import transformers

        getattr(transformers, name).from_pretrained(folder).save_pretrained(folder)

    return change


def with_dots(folder: Path) -> None:
    """Change the spelling of a module's path."""
    file = folder / "modules.json"
    file.write_text(file.read_text().replace('"1_Pooling"', '"./1_Pooling/"'))


def with_older_name(folder: Path) -> None:
    """Move the transformer's settings to a file of another name."""
    (folder / TRANSFORMER).unlink()
    rewrite("sentence_roberta_config.json", max_seq_length=17)(folder)


POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
MEAN, CUT = (pooling("mean"),), {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
CLASSES = ("BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification")
POOLINGS: dict[str, tuple[Recipe, Change]] = {
    "bias-0": (Recipe((*MEAN, dense(HIDDEN, 40, bias=False))), edit(DENSE, bias=0)),
    "residual-1": (Recipe((*MEAN, dense(HIDDEN, HIDDEN, use_residual=True))), edit(DENSE, use_residual=1)),
    "no-activation": (Recipe((*MEAN, dense(HIDDEN, 40))), edit(DENSE, activation_function=DROPPED)),
    "unknown-field": (Recipe((*MEAN, dense(HIDDEN, 40, "ReLU"))), edit(DENSE, later=1)),
    "prompt-0": (Recipe(MEAN, PROMPTS), edit(POOLING, include_prompt=0)),
    "prompt-null": (Recipe(MEAN, PROMPTS), edit(POOLING, include_prompt=None)),
    "mode-1": (Recipe(MEAN), rewrite(POOLING, pooling_mode_cls_token=1, word_embedding_dimension=HIDDEN)),
    "two-forms": (Recipe(MEAN), edit(POOLING, pooling_mode="max", pooling_mode_cls_token=True)),
    "path": (Recipe(MEAN), with_dots),
}
EMBEDDERS: dict[str, tuple[Recipe, Change]] = {
    "tokenizer-cuts": (Recipe(MEAN), edit("tokenizer.json", truncation=CUT)),
    "cut-on-the-left": (
        Recipe(MEAN, {}, {"max_seq_length": 20}),
        edit(TOKENIZER, truncation_side="left"),
    ),
    "padded-on-the-left": (Recipe((pooling("lasttoken"),)), edit(TOKENIZER, padding_side="left")),
    "older-name": (Recipe(MEAN), with_older_name),
    "without-modules": (Recipe(MEAN, PROMPTS | {"truncate_dim": 8}, {"max_seq_length": 17}), without_modules),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_modules_with_odd_files_pool_as_by_the_library(tmp_path: Path, name: str) -> None:
    from sentence_transformers import SentenceTransformer

    recipe, change = POOLINGS[name]
    write_embedder(tmp_path, recipe)
    change(tmp_path / "model")
    check_pooling(tmp_path / "model", SentenceTransformer(str(tmp_path / "model"), device="cpu"), prompt=2)


@pytest.mark.parametrize("name", CLASSES)
def test_an_embedder_saved_with_a_head_has_the_states_of_the_library(tmp_path: Path, name: str) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    write_embedder(tmp_path, Recipe((*MEAN, normalize)))
    with_head(name)(tmp_path / "model")
    reference = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    plan = plan_of(tmp_path / "model")
    assert plan.kind.task == "feature-extraction"
    model, _ = plan.kind.load_model(plan.checkpoint, plan.kind.load_tokenizer(plan.checkpoint))
    tokens = {"input_ids": torch.arange(5, 20)[None], "attention_mask": torch.ones(1, 15, dtype=torch.int64)}
    with torch.no_grad():
        expected = reference[0]({**tokens})["token_embeddings"].numpy()
        np.testing.assert_allclose(model(**tokens).last_hidden_state.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", thinned(EMBEDDERS))
def test_embedders_with_odd_files_answer_as_encode(tmp_path: Path, name: str) -> None:
    from sentence_transformers import SentenceTransformer

    recipe, change = EMBEDDERS[name]
    write_embedder(tmp_path, recipe)
    change(tmp_path / "model")
    reference = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    model = published(tmp_path)
    calls: list[dict[str, str]] = [{}, *({"prompt_name": each} for each, text in reference.prompts.items() if text)]
    for chosen in calls:
        found = answers(model, **chosen)
        expected = [reference.encode([text], **chosen)[0] for text in TEXTS]
        assert furthest(found, expected) <= 1e-5
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_generator_without_modules_gives_its_last_token(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = base(tmp_path / "model", Recipe((), decoder="qwen3"))
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    reference = SentenceTransformer(str(folder), device="cpu")
    export_checkpoint(folder, tmp_path / "repository", name="model", task="feature-extraction")
    texts = [text for text in TEXTS if text]  # nothing has a vector of zeros
    found = LocalModel.open(tmp_path / "repository", "model").infer_all([{"text_input": text} for text in texts])
    assert furthest([each["embedding"] for each in found], [reference.encode([text])[0] for text in texts]) <= 1e-5


RANKERS: dict[str, tuple[int, dict[str, Any], Change]] = {
    "without-modules": (1, PROMPTS, all_of(edit(LIBRARY, **{FIELD: IDENTITY}), without_modules)),
    "without-modules-of-several": (3, {}, all_of(edit(LIBRARY, **{FIELD: "torch.nn.Softmax"}), without_modules)),
    "two-fields": (
        1,
        {},
        all_of(
            edit(LIBRARY, **{FIELD: DROPPED}),
            edit("config.json", sentence_transformers={FIELD: None}, sbert_ce_default_activation_function=IDENTITY),
        ),
    ),
    "cut-on-the-left": (2, {"max_length": 20}, edit(TOKENIZER, truncation_side="left")),
}


def written_ranker(folder: Path, name: str) -> Any:
    """Save one of RANKERS; return it as the library reads it."""
    import sentence_transformers

    labels, settings, change = RANKERS[name]
    write_cross_encoder(folder, Recipe((), settings), labels)
    change(folder / "model")
    return sentence_transformers.CrossEncoder(str(folder / "model"), device="cpu")


@pytest.mark.parametrize("name", RANKERS)
def test_the_activation_of_odd_files_is_that_of_the_library(tmp_path: Path, name: str) -> None:
    reference = written_ranker(tmp_path, name)
    task = plan_of(tmp_path / "model", task=Task.TEXT_RANKING).kind
    assert isinstance(task, CrossEncoder)
    assert task.activation == ACTIVATIONS[type(reference.activation_fn).__name__]


# The others differ from these in their activations.
@pytest.mark.parametrize(
    "name", [full(name) if name in ("without-modules-of-several", "two-fields") else name for name in RANKERS]
)
def test_cross_encoders_with_odd_files_score_as_predict(tmp_path: Path, name: str) -> None:
    reference = written_ranker(tmp_path, name)
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", task="text-ranking")
    model = LocalModel.open(tmp_path / "repository", "model")
    found = [each["score"] for each in model.infer_all([{"query": query, "text_input": text} for query, text in PAIRS])]
    np.testing.assert_allclose(found, [reference.predict([pair])[0] for pair in PAIRS], rtol=1e-5, atol=1e-5)


def with_template(folder: Path) -> None:
    """Save an embedder with a chat template, through which its texts go."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base(folder / "base", Recipe(())))
    tokenizer.chat_template = "{% for message in messages %}cat {{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder / "base")
    SentenceTransformer(modules=[Transformer(str(folder / "base")), pooling("mean")()]).save(str(folder / "model"))


def with_static_weights(folder: Path) -> None:
    """Save a sparse encoder of token weights, whose config.json is not a transformer's."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base(folder / "base", Recipe(())))
    SparseEncoder(modules=[SparseStaticEmbedding(tokenizer)]).save(str(folder / "model"))


def with_two_ways(folder: Path) -> None:
    """Save a router with separate models for queries and documents."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router, Transformer

    source = str(base(folder / "base", Recipe(())))
    ways = [[Transformer(source), pooling(mode)()] for mode in ("mean", "cls")]
    SentenceTransformer(modules=[Router.for_query_document(*ways)]).save(str(folder / "model"))


def with_autoencoder(folder: Path) -> None:
    """Save a sparse encoder of vectors (CSR)."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

    source = str(base(folder / "base", Recipe(())))
    modules = [Transformer(source), pooling("mean")(), SparseAutoEncoder(HIDDEN, 128, k=16, k_aux=32)]
    SparseEncoder(modules=modules).save(str(folder / "model"))


def with_custom_scores(folder: Path) -> None:
    """Save a model with scores by a class that the library does not trust."""
    write_cross_encoder(folder, Recipe(()))
    edit_json(folder / "model" / LIBRARY, **{FIELD: "own.Identity"})


def with_logits(folder: Path) -> None:
    """Save an embedder of a masked language model's logits."""
    write_sparse_encoder(folder, Recipe((pooling("max"),)))


def with_lengths(folder: Path) -> None:
    """Save a model whose queries the library truncates at another length."""
    write_embedder(folder, Recipe(MEAN, transformer={"query_length": 17}))


REFUSED: dict[Callable[[Path], None], str] = {
    with_template: "messages of a chat template.*sentence_bert_config.json",
    with_static_weights: "begins with SparseStaticEmbedding",
    with_two_ways: "lists a Router, whose routes hfx can't export together",
    with_autoencoder: "Pooling, SparseAutoEncoder",
    with_custom_scores: "'own.Identity'",
    with_logits: "to 'logits'",
    with_lengths: r"settings of their own \(query_length\)",
}


@pytest.mark.parametrize("write", REFUSED)
def test_each_unsupported_file_is_refused_with_a_fix(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    with pytest.raises(CheckpointUnsupported, match=REFUSED[write]) as caught:
        export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert caught.value.fix and str(tmp_path) in caught.value.message
