"""ColBERT checkpoints of PyLate and of Stanford's library: their vectors, and refused variants."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, RequestRefused, SourceError
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.colbert_models import PYLATE, WORDS, change, write_pylate, write_stanford
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import TEXTS, Recipe
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

RESIDUAL = (
    {"out_features": 40, "bias": True, "activation_function": "torch.nn.modules.activation.GELU"},
    {"use_residual": True},
    {"use_residual": True, "bias": True},
)
MODERNBERT = partial(write_pylate, model_type="modernbert", pieces="roberta")
# Where sentence-transformers differ from PyLate: unknown words are no token, documents may have any length.
OTHERWISE = {"unknown-words", "defaults"}
# Tokens, masks and sums of vectors that pylate 1.6.0 (on sentence-transformers 5.3.0) gave.
RECORDED = json.loads((Path(__file__).parent / "recorded/pylate.json").read_text())
CASES: dict[str, Callable[[Path], Path]] = {
    "stanford": write_stanford,
    "stanford-attends": partial(write_stanford, attend_to_mask_tokens=True, query_maxlen=40, doc_maxlen=20),
    "stanford-punctuation": partial(write_stanford, mask_punctuation=False),
    "pylate": write_pylate,
    "attends": partial(write_pylate, attend_to_expansion_tokens=True),
    "not-expanded": partial(write_pylate, do_query_expansion=False, attend_to_expansion_tokens=True),
    "no-markers": partial(write_pylate, query_prefix="", document_prefix=""),
    "lengths": partial(write_pylate, query_length=48, document_length=20),
    "words": partial(write_pylate, skiplist_words=["the", ".", "##s"]),
    "unknown-words": partial(write_pylate, skiplist_words=["the", "nowhere"]),
    "prompts": partial(write_pylate, prompts={"query": "the dog: ", "document": "a [SEP] fil"}),
    "dense": partial(write_pylate, dense=RESIDUAL),
    "lower-case": partial(
        write_pylate, recipe=Recipe((), cased=True, transformer={"do_lower_case": True}, words=WORDS)
    ),
    "defaults": partial(
        write_pylate,
        recipe=Recipe((), words=WORDS, config={"max_position_embeddings": 200}),
        **dict.fromkeys(PYLATE),
    ),
    "modernbert": partial(MODERNBERT, recipe=Recipe((), config={"local_attention": 64})),
    "modernbert-attends": partial(MODERNBERT, attend_to_expansion_tokens=True),
    "xlm-roberta": partial(write_pylate, model_type="xlm-roberta", pieces="xlm-roberta"),
    "distilbert": partial(write_pylate, model_type="distilbert", pieces="distilbert"),
    "mpnet": partial(write_pylate, model_type="mpnet", pieces="mpnet"),
    "deberta-v2": partial(write_pylate, model_type="deberta-v2", pieces="deberta-v2", query_length=33),
}


def answers(model: LocalModel, role: str, texts: Sequence[str] = TEXTS) -> list[Any]:
    found = model.infer_all([{"text_input": text, "prompt_name": role} for text in texts])
    assert [len(each["embedding"]) for each in found] == [each["input_tokens"] for each in found]
    return [np.array(each["embedding"]) for each in found]


def settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings of a checkpoint by PyLate's names."""
    if not (folder / "artifact.metadata").is_file():
        stated = json.loads((folder / "config_sentence_transformers.json").read_text())
        return PYLATE | {"document_length": 180} | stated
    stated = json.loads((folder / "artifact.metadata").read_text())
    names = {
        "query_prefix": "query_token_id",
        "document_prefix": "doc_token_id",
        "query_length": "query_maxlen",
        "document_length": "doc_maxlen",
        "attend_to_expansion_tokens": "attend_to_mask_tokens",
    }
    words = [*string.punctuation] if stated["mask_punctuation"] else []
    return PYLATE | {name: stated[other] for name, other in names.items()} | {"skiplist_words": words}


def published(folder: Path, role: str, texts: Sequence[str]) -> list[tuple[list[int], list[int], list[bool], Any]]:
    """Return token ids, mask, the tokens with vectors, and the vectors, by the published formula.

    The formula (Khattab and Zaharia 2020) is normalize(linear(BERT("[CLS] [Q] q [SEP] [MASK] ..."))) for a query and
    normalize(linear(BERT("[CLS] [D] d [SEP]"))) for a document, without its punctuation.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    settings, tokenizer = settings_of(folder), AutoTokenizer.from_pretrained(folder)
    model, vocabulary = AutoModel.from_pretrained(folder).eval(), tokenizer.get_vocab()
    length, marker = settings[f"{role}_length"], [vocabulary[word] for word in [settings[f"{role}_prefix"]] if word]
    skipped = {vocabulary.get(word, tokenizer.unk_token_id) for word in settings["skiplist_words"]}
    config = folder / "sentence_bert_config.json"
    lowers = config.is_file() and json.loads(config.read_text())["do_lower_case"]
    found = []
    for text in texts:
        read = settings["prompts"][role] + text
        ids = tokenizer(read.lower() if lowers else read, truncation=True, max_length=length - len(marker))["input_ids"]
        ids = [*ids[:1], *marker, *ids[1:]]
        count = length - len(ids) if role == "query" and settings["do_query_expansion"] else 0
        mask = [1] * len(ids) + [int(settings["attend_to_expansion_tokens"])] * count
        ids += [tokenizer.mask_token_id] * count
        kept = [role == "query" or token not in skipped for token in ids]
        with torch.inference_mode():
            vectors = model(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
            for layer in dense_layers(folder):
                vectors = layer(vectors)
            found.append((ids, mask, kept, torch.nn.functional.normalize(vectors, dim=-1)[kept].numpy()))
    return found


def dense_layers(folder: Path) -> list[Callable[[Any], Any]]:
    """Return the linears behind the transformer, with their activations and residuals."""
    import torch
    from safetensors.torch import load_file

    if (folder / "artifact.metadata").is_file():
        weight = load_file(folder / "model.safetensors")["linear.weight"]
        return [lambda x: x @ weight.T]

    def layer(part: Path) -> Callable[[Any], Any]:
        config, weights = json.loads((part / "config.json").read_text()), load_file(part / "model.safetensors")
        activation = getattr(torch.nn, config["activation_function"].split(".")[-1])()
        residual = weights.get("residual.weight", torch.eye(config["in_features"]))
        share = 1 if config.get("use_residual") else 0
        bias = weights.get("linear.bias", 0)
        return lambda x: activation(x @ weights["linear.weight"].T + bias) + (x @ residual.T if share else 0)

    return [layer(part) for part in sorted(folder.glob("*_Dense"))]


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_the_published_formula_and_of_pylate(tmp_path: Path, name: str) -> None:
    folder = CASES[name](tmp_path / "model")
    plan = make_encoder_plan(open_checkpoint(str(folder)), ExportOptions())
    tokenizer = plan.kind.load_tokenizer(plan.checkpoint)
    texts = [text for text in TEXTS if name != "lower-case" or "[" not in text]  # there, PyLate lowers [SEP], too
    for role in ("query", "document"):
        recorded = RECORDED.get(name, {}).get(role, {})
        expected = published(folder, role, [*texts, *recorded])
        for text, (ids, *_) in zip(texts, expected, strict=False):
            request = {names.TEXT_INPUT: settings_of(folder)["prompts"][role] + text, names.PROMPT_NAME: role}
            assert plan.kind.expected_ids(tokenizer, request, plan.max_length) == [ids]
        for each, (ids, mask, kept, vectors) in zip(recorded.values(), expected[len(texts) :], strict=True):
            assert [ids, mask, [*map(int, kept)]] == each["tokens"]
            assert np.abs(vectors.sum(0) - each["sum"]).max() < 1e-4


@pytest.mark.parametrize("name", few(CASES, "stanford", "prompts", "lengths", "modernbert-attends"))
def test_vectors_equal_those_of_pylate_and_sentence_transformers(tmp_path: Path, name: str) -> None:
    """Expected are the published formula and sentence-transformers."""
    from sentence_transformers import MultiVectorEncoder

    folder = CASES[name](tmp_path / "model")
    reference = MultiVectorEncoder(str(folder), device="cpu")
    manifest = export_checkpoint(folder, tmp_path / "repository", name="model")
    assert (manifest.task, manifest.choices["pooling"]) == ("feature-extraction", ["tokens"])
    model = LocalModel.open(tmp_path / "repository", "model")
    texts = [text for text in TEXTS if name != "lower-case" or "[" not in text]  # there, PyLate lowers [SEP], too
    for role, encode in (("query", reference.encode_query), ("document", reference.encode_document)):
        found, expected = answers(model, role, texts), published(folder, role, texts)
        check(found, [vectors for *_, vectors in expected])
        assert alone(model, role, texts, found)
        if name not in OTHERWISE:
            check(found, [encode([text])[0].numpy() for text in texts])


def test_roles_share_a_batch_and_a_text_without_one_is_a_document(tmp_path: Path) -> None:
    export_checkpoint(write_pylate(tmp_path / "model"), tmp_path / "repository", name="model", max_length=60)
    model = LocalModel.open(tmp_path / "repository", "model")
    mixed = [{"text_input": text, "prompt_name": role} for text in TEXTS[:8] for role in ("query", "document")]
    found = [np.array(each["embedding"]) for each in model.infer_all(mixed)]
    assert [len(each) for each in found[::2]] == [32] * 8
    for each, of in ((found[::2], "query"), (found[1::2], "document")):
        assert all(np.array_equal(a, b) for a, b in zip(each, answers(model, of, TEXTS[:8]), strict=True))
    plain = [np.array(each["embedding"]) for each in model.infer_all([{"text_input": text} for text in TEXTS[:8]])]
    assert all(np.array_equal(a, b) for a, b in zip(plain, found[1::2], strict=True))
    own = [{"text_input": "a cat", "prompt": "the dog: ", **role} for role in ({"prompt_name": "query"}, {})]
    found = [np.array(each["embedding"]) for each in model.infer_all(own)]  # with its own prompt, as one text
    assert np.array_equal(found[0], answers(model, "query", ["the dog: a cat"])[0])
    assert np.array_equal(found[1], answers(model, "document", ["the dog: a cat"])[0])
    with pytest.raises(RequestRefused, match="prompt_name is 'dog'"):
        model.infer({"text_input": "a", "prompt": "b", "prompt_name": "dog"})
    long = model.infer({"text_input": "the dog " * 100})
    assert (long["input_tokens"], long["truncated_tokens"] > 100) == (60, True)  # beyond the 50 of its files


def test_a_copy_of_the_transformer_is_left_alone(tmp_path: Path) -> None:
    """A folder that both libraries open has modules with a copy, and the transformer's files beside them."""
    folder = write_stanford(tmp_path / "model")
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(
        json.dumps([*modules, {"path": "1_Dense", "type": "pylate.models.Dense.Dense"}])
    )
    export_checkpoint(folder, tmp_path / "repository", name="model")
    model = LocalModel.open(tmp_path / "repository", "model")
    check(answers(model, "query"), [vectors for *_, vectors in published(folder, "query", TEXTS)])


def with_code_of_its_own(folder: Path) -> Path:
    """Make a checkpoint like jina-colbert-v2: an XLM-R's name, code elsewhere, and that code's tensors."""
    from safetensors.torch import load_file, save_file

    write_stanford(folder)
    weights = {
        name.replace("bert.", "roberta."): each for name, each in load_file(folder / "model.safetensors").items()
    }
    renamed = {name.replace("encoder.layer.", "encoder.layers.mixer."): each for name, each in weights.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    code = {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta.XLMRobertaModel"}
    change(folder / "config.json", model_type="xlm-roberta", auto_map=code)
    return folder


REFUSED: dict[str, tuple[Callable[[Path], Path], type[SourceError], str]] = {
    "module": (partial(write_pylate, kind="pylate.models.Other"), CheckpointUnsupported, "pylate.models.Other"),
    "no-dense": (partial(write_pylate, dense=()), CheckpointUnsupported, "modules Transformer,"),
    "marker": (partial(write_stanford, doc_token_id="[unused9]"), CheckpointCorrupt, r"'\[unused9\]'.*document"),
    "no-marker": (partial(write_stanford, recipe=Recipe(())), CheckpointCorrupt, r"'\[unused0\]'.*query"),
    "width": (partial(write_stanford, dim=25), CheckpointCorrupt, "linear.weight"),
    "width-of-dense": (partial(write_pylate, dense=({}, {"in_features": 30})), CheckpointCorrupt, "30 values"),
    "dim": (partial(write_stanford, dim="wide"), CheckpointCorrupt, "dim in .*artifact.metadata"),
    "length": (partial(write_stanford, query_maxlen=-1), CheckpointCorrupt, "query_maxlen"),
    "short": (partial(write_pylate, document_length=8), CheckpointCorrupt, "document_length"),
    "long-queries": (partial(write_pylate, query_length=100), CheckpointUnsupported, "100 tokens.*64"),
    "expansion": (partial(write_pylate, do_query_expansion="yes"), CheckpointCorrupt, "do_query_expansion"),
    "words": (partial(write_pylate, skiplist_words=[1]), CheckpointCorrupt, "skiplist_words"),
    "own-code": (with_code_of_its_own, CheckpointCorrupt, "lacks tensors"),
    "window": (MODERNBERT, CheckpointUnsupported, "local_attention is 16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_unsupported_colbert_checkpoint_is_refused_with_a_fix(tmp_path: Path, name: str) -> None:
    write, error, message = REFUSED[name]
    folder = write(tmp_path / "model")
    with pytest.raises(error, match=message) as caught:
        export_checkpoint(folder, tmp_path / "repository", name="model")
    assert caught.value.fix
    assert not (tmp_path / "repository/model").exists()


def test_metadata_and_weights_must_be_there(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_stanford(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["linear.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointCorrupt, match=r"linear\.weight"):
        export_checkpoint(folder, tmp_path / "repository", name="model")
    (folder / "artifact.metadata").unlink()
    with pytest.raises(CheckpointCorrupt, match=r"artifact\.metadata"):
        export_checkpoint(folder, tmp_path / "repository", name="model")


def alone(model: LocalModel, role: str, texts: Sequence[str], found: list[Any]) -> bool:
    return all(np.array_equal(answers(model, role, (text,))[0], one) for text, one in zip(texts, found, strict=True))


def check(found: list[Any], expected: list[Any]) -> None:
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) <= 1e-5
