"""StaticEmbedding models of sentence-transformers and model2vec answer like encode after an export."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, RequestRefused, UsageError
from hfx.exporter.encoder.checkpoint.pooling import Layer, Pooling
from hfx.exporter.encoder.checkpoint.sentence_transformers import read_pooling
from hfx.exporter.encoder.checkpoint.static_embeddings import load_table
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import Checkpoint, open_checkpoint, open_config
from hfx.local.encoder import LocalModel
from tests.attacks.damage import edit_json
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import answers, same_in_any_batch
from tests.rigs.checkpoints.sentence_answers import published as exported
from tests.rigs.checkpoints.sentence_models import TEXTS, dense, furthest, layer_norm, normalize, static_embedding
from tests.rigs.machine.tiers import full

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PROMPTS = {"prompts": {"query": "the dog: ", "odd": "a [SEP] fil"}, "default_prompt_name": "query"}
RECIPES: dict[str, Any] = {
    "plain": ((), {}),
    "normalized": ((normalize,), {}),
    "layers": ((dense(24, 40, "GELU"), layer_norm(40), dense(40, 16, "Identity", bias=False), normalize), {}),
    "prompts": ((normalize,), PROMPTS),
    "truncated-vectors": ((normalize,), {"truncate_dim": 10}),
    "cased": ((), {"cased": True}),
}
EMPTY = TEXTS.index("")


def encoded(encode: Any, texts: tuple[str, ...] = TEXTS) -> Any:
    """Return the library's result for each text alone."""
    return np.stack([encode([text])[0] for text in texts])


def close(found: list[Any], expected: Any) -> None:
    told = [i for i, vector in enumerate(expected) if vector.any()]
    assert furthest([found[i] for i in told], expected[told]) <= 1e-5
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


# Tables without layers and with a normalization are exported below, too.
@pytest.mark.parametrize("name", [full(name) if name in ("plain", "normalized") else name for name in RECIPES])
def test_static_vectors_equal_encode_alone_and_in_any_batch(tmp_path: Path, name: str) -> None:
    layers, settings = RECIPES[name]
    reference = static_embedding(tmp_path / "model", *layers, **settings)
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert (manifest.task, manifest.choices["tokenizer"]["compiled"]) == ("feature-extraction", True)
    model = LocalModel.open(tmp_path / "repository", "model")
    expected = encoded(reference.encode)
    assert len(np.unique(expected.round(3), axis=0)) >= 9
    close(same_in_any_batch(model), expected)
    for encode, chosen in [
        (reference.encode_query, {"prompt_name": "query"}),
        *((partial(reference.encode, prompt_name=each), {"prompt_name": each}) for each in reference.prompts),
        (partial(reference.encode, prompt="a film in PARIS. "), {"prompt": "a film in PARIS. "}),
    ]:
        if "prompts" in settings:
            close(answers(model, **chosen), encoded(encode))


def test_a_text_without_tokens_is_answered_as_by_encode(tmp_path: Path) -> None:
    layers = (dense(24, 16, "Tanh"),)
    reference = static_embedding(tmp_path / "model", *layers)
    model = exported(tmp_path)
    empty = answers(model, ("", " \t\n", "\u200b\u0000"))
    np.testing.assert_allclose(empty, encoded(reference.encode, ("", " \t\n", "\u200b\u0000")), atol=1e-6)
    assert empty[0] == empty[1] == empty[2] and any(empty[0])  # the bias of the layer behind it


def test_a_long_text_is_averaged_up_to_a_bound(tmp_path: Path) -> None:
    reference = static_embedding(tmp_path / "model")
    model = exported(tmp_path)
    words = ("the dog ran in a good film . " * 1024).split(" ")[:8192]
    long, longer = " ".join(words), " ".join([*words, "bad", "bad", "bad"])
    whole, cut = model.infer_all([{"text_input": text} for text in (long, longer)])
    assert furthest([whole["embedding"]], encoded(reference.encode, (long,))) <= 1e-5
    assert (whole["truncated_tokens"], cut["truncated_tokens"]) == (0, 3)
    assert whole["embedding"] == cut["embedding"]
    assert make_plan(open_checkpoint(str(tmp_path / "model")), ExportOptions(max_length=100)).max_length == 100
    with pytest.raises(UsageError, match="reads 16 to 8192 tokens"):
        make_plan(open_checkpoint(str(tmp_path / "model")), ExportOptions(max_length=8193))


@pytest.mark.parametrize("side", [full("Right"), "Left"])
def test_a_text_is_cut_where_tokenizer_json_says_so(tmp_path: Path, side: str) -> None:
    static_embedding(tmp_path / "model", normalize)
    cut = {"direction": side, "max_length": 20, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    edit_json(
        tmp_path / "model/tokenizer.json",
        truncation=cut,
        padding=padding | {"pad_type_id": 0, "pad_token": "[PAD]"},
    )
    reference = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    model = exported(tmp_path)
    close(answers(model), encoded(reference.encode))
    first, last = (model.infer({"text_input": text}) for text in ("a cat " + "dog " * 30, "dog " * 30 + "a cat"))
    assert first["truncated_tokens"] == last["truncated_tokens"] == 12
    assert first["embedding"] != last["embedding"]


def test_other_files_of_the_library_are_not_read(tmp_path: Path) -> None:
    """Those files belong to its Transformer."""
    static_embedding(tmp_path / "model", normalize, cased=True)
    (tmp_path / "model/sentence_bert_config.json").write_text('{"do_lower_case": true, "max_seq_length": 16}')
    (tmp_path / "model/tokenizer_config.json").write_text('{"model_max_length": 16, "tokenizer_class": "GPT2"}')
    (tmp_path / "model/config.json").write_text('{"model_type": "bert", "vocab_size": 3, "hidden_size": 16}')
    reference = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    close(answers(exported(tmp_path)), encoded(reference.encode))


def in_a_folder(folder: Path) -> None:
    """Arrange the files as versions 3 and 4 did, without a config.json (static-retrieval-mrl-en-v1)."""
    home = folder / "0_StaticEmbedding"
    home.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(home / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"type": "sentence_transformers.models.StaticEmbedding", "path": "0_StaticEmbedding"}
    (folder / "modules.json").write_text(json.dumps(modules))


def of_model2vec(folder: Path, **tensors: Any) -> None:
    """Arrange the files as model2vec does (potion-base-8M)."""
    table = load_file(folder / "model.safetensors")["embedding.weight"]
    save_file({"embeddings": table} | tensors, folder / "model.safetensors")
    paths = {"StaticEmbedding": ".", "Normalize": "1_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Normalize/config.json").unlink()
    (folder / "1_Normalize").rmdir()
    (folder / "config_sentence_transformers.json").unlink()
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": 24, "seq_length": 1000000}
    (folder / "config.json").write_text(json.dumps(config | {"normalize": True}))


LAYOUTS: dict[str, Any] = {
    "a folder of its own": in_a_folder,
    "model2vec": of_model2vec,
    "weights": partial(of_model2vec, weights=torch.rand(100, dtype=torch.float64)),
    "mapping": partial(of_model2vec, embeddings=torch.randn(7, 24), mapping=torch.arange(100) % 7),
    "both": partial(
        of_model2vec,
        embeddings=torch.randn(7, 24, dtype=torch.float16),
        mapping=(torch.arange(100) * 3 % 7).to(torch.int32),
        weights=torch.rand(100),
    ),
}


def vectors_of_words(checkpoint: Checkpoint) -> Any:
    """Return the vector of each word of the vocabulary."""
    words = torch.arange(checkpoint.config["vocab_size"])[None]
    with torch.no_grad():
        return load_table(checkpoint)(words, torch.ones_like(words)).last_hidden_state[0].numpy()


def written_as(folder: Path, name: str) -> Any:
    """Save a model in one of LAYOUTS; return it as the library reads it."""
    reference = static_embedding(folder, normalize)
    tokens = len(reference[0].tokenizer.get_vocab())
    keywords = getattr(LAYOUTS[name], "keywords", {})
    LAYOUTS[name](folder, **{key: each[:tokens] for key, each in keywords.items() if len(each) == 100})
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("name", LAYOUTS)
def test_tables_of_every_layout_are_read_as_by_the_library(tmp_path: Path, name: str) -> None:
    reference, checkpoint = written_as(tmp_path / "model", name), open_checkpoint(str(tmp_path / "model"))
    words = torch.arange(reference[0].tokenizer.get_vocab_size())
    with torch.no_grad():
        expected = reference[0]({"input_ids": words, "offsets": words})["sentence_embedding"].numpy()
    np.testing.assert_allclose(vectors_of_words(checkpoint), expected, rtol=1e-6)
    assert read_pooling(checkpoint.folder) == Pooling(("mean",), (Layer("Normalize"),))


@pytest.mark.parametrize(
    "name", [full(name) if name in ("model2vec", "weights", "mapping") else name for name in LAYOUTS]
)
def test_other_file_layouts_answer_as_encode(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    reference = written_as(folder, name)
    model = exported(tmp_path)
    found = answers(model)
    close(found, encoded(reference.encode))
    assert [answers(model, (text,))[0] for text in TEXTS] == found
    hashed = open_checkpoint(str(folder)).sha256()
    tokenizer = next(folder.rglob("tokenizer.json"))
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert open_checkpoint(str(folder)).sha256() != hashed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tables_of_other_floats_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    reference = static_embedding(tmp_path / "model", normalize)
    table = reference[0].embedding.weight.detach().to(dtype)
    save_file({"embedding.weight": table}, tmp_path / "model/model.safetensors")
    found = vectors_of_words(open_checkpoint(str(tmp_path / "model")))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, table.float().numpy())


@pytest.mark.parametrize("declared", [True, False])
def test_shortened_vectors_equal_those_of_encode(tmp_path: Path, declared: bool) -> None:
    reference = static_embedding(tmp_path / "model")
    if declared:
        (tmp_path / "model/config.json").write_text('{"is_matryoshka": true}')
    model = exported(tmp_path, dimensions=not declared)
    for count in (1, 8, 24):
        found = answers(model, dimensions=count)
        expected = encoded(partial(reference.encode, truncate_dim=count, normalize_embeddings=count < 24))
        close(found, expected)
    with pytest.raises(RequestRefused, match="dimensions is 25"):
        model.infer({"text_input": "a", "dimensions": 25})


@pytest.mark.parametrize(
    "options",
    [{"quantize": True}, {"precision": "int8"}, {"token_vectors": True}, {"task": "text-classification"},
     {"task": "zero-shot-classification"}, {"task": "fill-mask"}, {"task": "text-ranking"}],
    ids=str,
)  # fmt: skip
def test_options_that_static_embeddings_cannot_honour_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    static_embedding(tmp_path / "model")
    with pytest.raises((UsageError, CheckpointUnsupported)) as caught:
        make_plan(open_config(str(tmp_path / "model")), ExportOptions(**options))
    assert caught.value.fix


TENSORS: dict[str, Any] = {
    "no table": {"embedding": torch.ones(70, 4)},
    "no matrix": {"embedding.weight": torch.ones(70)},
    "no rows": {"embedding.weight": torch.ones(0, 4)},
    "no columns": {"embedding.weight": torch.ones(70, 0)},
    "fewer rows than tokens": {"embedding.weight": torch.ones(9, 4)},
    "integers": {"embedding.weight": torch.ones(70, 4, dtype=torch.int8)},
    "infinite": {"embedding.weight": torch.full((70, 4), torch.inf)},
    "a mapping beyond the table": {"embeddings": torch.ones(9, 4), "mapping": torch.arange(70)},
    "a negative mapping": {"embeddings": torch.ones(9, 4), "mapping": torch.arange(70) - 69},
    "a mapping of floats": {"embeddings": torch.ones(9, 4), "mapping": torch.zeros(70)},
    "a mapping of two dimensions": {"embeddings": torch.ones(9, 4), "mapping": torch.zeros(70, 2, dtype=torch.int64)},
    "weights of another length": {"embeddings": torch.ones(70, 4), "weights": torch.ones(69)},
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_not_an_embedding_table_are_corrupt(tmp_path: Path, name: str) -> None:
    static_embedding(tmp_path / "model")
    save_file(TENSORS[name], tmp_path / "model/model.safetensors")
    with pytest.raises(CheckpointCorrupt) as caught:
        exported(tmp_path)
    assert str(tmp_path) in caught.value.message and caught.value.fix
    assert not (tmp_path / "repository/model").exists()


@pytest.mark.parametrize(
    ("content", "kind"),
    [("", CheckpointCorrupt), ("{}", CheckpointCorrupt), ("[1]", CheckpointCorrupt), ("[" * 50_000, CheckpointCorrupt),
     ('{"truncation": {"max_length": "x"}}', CheckpointCorrupt), ('{"truncation": 5}', CheckpointCorrupt),
     ('{"truncation": {"max_length": 5, "direction": "Right"}}', CheckpointUnsupported), (None, CheckpointCorrupt)],
)  # fmt: skip
def test_an_invalid_tokenizer_json_is_refused(tmp_path: Path, content: str | None, kind: type[Exception]) -> None:
    static_embedding(tmp_path / "model")
    file = tmp_path / "model/tokenizer.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(kind, match="token"):
        exported(tmp_path)


def test_pickled_tables_and_unknown_modules_are_unsupported(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    static_embedding(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    kept = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointUnsupported, match="pickle"):
        exported(tmp_path)
    (folder / "model.safetensors").write_bytes(kept)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules, {"type": "sentence_transformers.x.CNN", "path": "1"}]))
    with pytest.raises(CheckpointUnsupported, match="StaticEmbedding, CNN"):
        exported(tmp_path)


def test_a_model_type_of_this_name_without_modules_is_unsupported(tmp_path: Path) -> None:
    static_embedding(tmp_path / "model")
    (tmp_path / "model/modules.json").unlink()
    (tmp_path / "model/config.json").write_text('{"model_type": "StaticEmbedding", "architectures": ["BertModel"]}')
    with pytest.raises(CheckpointUnsupported, match="can't be exported"):
        exported(tmp_path)
