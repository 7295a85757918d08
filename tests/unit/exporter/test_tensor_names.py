"""Stored tensors that a model lacks are named and left out, exactly as from_pretrained leaves them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hfx.cli import main
from hfx.errors import CheckpointCorrupt
from hfx.exporter.checkpoint_files import find_weights
from hfx.exporter.config_file import read_config
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.load import load_model, superfluous_tensors
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import Checkpoint, open_checkpoint, open_config
from tests.attacks.damage import edit_tensors, pickle_weights
from tests.rigs.checkpoints import generator_checkpoints, tiny_checkpoints, tiny_encoders, tiny_generators

CLASSIFIER, TOKENS, MASKED, BARE = (
    "AutoModelForSequenceClassification", "AutoModelForTokenClassification", "AutoModelForMaskedLM", "AutoModel",
)  # fmt: skip
DECODER, ENCODER_DECODER = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
Tensors = dict[str, Any]
Edit = Callable[[Tensors], Tensors]
# The tensors of other heads and losses, and of tables that newer versions compute.
LEFTOVERS: Tensors = {
    "loss_fct.weight": torch.ones(3),
    "cls.predictions.bias": torch.ones(120),
    "cls.predictions.transform.dense.weight": torch.ones(32, 32),
    "cls.seq_relationship.weight": torch.ones(2, 32),
    "lm_head.weight": torch.ones(120, 32),
    "lm_head.bias": torch.ones(120),
    "vocab_projector.weight": torch.ones(120, 32),
    "vocab_layer_norm.bias": torch.ones(32),
    "lm_predictions.lm_head.dense.weight": torch.ones(32, 32),
    "mask_predictions.dense.bias": torch.ones(32),
    "discriminator_predictions.dense.bias": torch.ones(32),
    "qa_outputs.weight": torch.ones(2, 32),
    "{}embeddings.position_ids": torch.arange(130)[None],
    "{}pooler.dense.weight": torch.ones(32, 32),
    "{}encoder.layer.9.output.dense.bias": torch.ones(32),
    "classifier.weight_scale": torch.ones(2, 1),
    "num_batches_tracked": torch.tensor(3),
}
# Generator, and the tensors that are beside its own in the files of other versions of transformers, of fairseq, and of
# models with other settings.
OLD_FILES: tuple[tuple[str, Tensors], ...] = (
    ("gpt2", {f"transformer.h.{at}.attn.masked_bias": torch.tensor(-1e4) for at in range(2)}),
    ("gpt2", {f"transformer.h.{at}.attn.bias": torch.ones(1, 1, 80, 80).tril().bool() for at in range(2)}),
    ("gpt2", {"multiple_choice_head.summary.weight": torch.ones(1, 48), "score.weight": torch.ones(2, 48)}),
    ("neox", {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 80, 80), "v_head.summary.bias": torch.ones(1)}),
    ("neox", {f"gpt_neox.layers.{at}.attention.masked_bias": torch.tensor(-1e9) for at in range(2)}),
    ("neox", {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(2)}),
    ("opt", {"decoder.version": torch.tensor([3.0]), "model.decoder.version": torch.tensor([3.0])}),
    ("m2m", {f"model.{side}.embed_positions.weights": torch.ones(82, 48) for side in ("encoder", "decoder")}),
    ("m2m", {"model.encoder.version": torch.tensor([3.0]), "model.decoder.version": torch.tensor([3.0])}),
    ("bart", {"model.encoder.version": torch.tensor([3.0]), "model.decoder.version": torch.tensor([3.0])}),
    ("bart", {"classification_head.dense.weight": torch.ones(48, 48)}),
    ("m2m", {"model.encoder.embed_positions._float_tensor": torch.ones(1)}),
    ("mbart", {"encoder.version": torch.tensor([3.0])}),
    ("pegasus", {"model.encoder.layernorm_embedding.weight": torch.ones(48)}),
    ("marian", {"model.encoder.version": torch.tensor([3.0])}),
    ("t5", {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(8, 5)}),
    ("mt5", {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(8, 5)}),
    ("llama", {f"model.layers.{at}.self_attn.rotary_emb.inv_freq": torch.ones(8) for at in range(2)}),
    ("llama", {"model.layers.0.self_attn.q_proj.bias": torch.ones(96)}),
    ("llama", {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(56, 1)}),
    ("gpt2", {"transformer.h.2.ln_1.weight": torch.ones(48)}),
    ("t5", {"encoder.final_layer_norm.bias": torch.ones(48)}),
    ("opt", {"lm_head.bias": torch.ones(120)}),
    ("qwen2", {"v_head.summary.weight": torch.ones(1, 48), "model.rotary_emb.inv_freq": torch.ones(8)}),
)  # fmt: skip


def opened(folder: Path) -> Checkpoint:
    return Checkpoint(str(folder), folder, None, read_config(folder), find_weights(folder))


def auto_class(name: str) -> str:
    return DECODER if name in tiny_generators.DECODERS else ENCODER_DECODER


def reported(folder: Path, auto_class: str) -> tuple[Any, list[str], list[str]]:
    """Return transformers' model, and the unexpected and missing names of its report."""
    model, report = getattr(transformers, auto_class).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    return model.eval(), sorted(report["unexpected_keys"]), sorted(report["missing_keys"])


def same_values(model: Any, other: Any) -> bool:
    mine, others = model.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def saved_encoder(folder: Path, model_type: str, auto_class: str, edit: Edit, pickled: bool = False) -> Checkpoint:
    model = tiny_encoders.build(model_type, auto_class)
    if model is None:
        pytest.skip(f"transformers has no {auto_class} for {model_type}")
    model.save_pretrained(folder)
    (pickle_weights if pickled else edit_tensors)(folder, edit)
    return opened(folder)


def beside(extra: Tensors) -> Edit:
    return lambda tensors: tensors | {name: value.clone() for name, value in extra.items()}


def old_names(tensors: Tensors) -> Tensors:
    """Return `tensors` with the names of norms that TensorFlow's checkpoints have."""
    pairs = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    return {_replaced(name, pairs): value for name, value in tensors.items()}


def _replaced(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    for new, old in pairs:
        name = name.replace(new, old)
    return name


@pytest.mark.parametrize(
    "at", range(len(OLD_FILES)), ids=lambda at: f"{OLD_FILES[at][0]}-{next(iter(OLD_FILES[at][1]))}"
)
def test_a_generators_engine_is_the_same_beside_tensors_that_transformers_leaves_out(tmp_path: Path, at: int) -> None:
    name, extra = OLD_FILES[at]
    sound = tiny_generators.save(tmp_path / "sound", tiny_generators.build(name))
    old = tiny_generators.save(tmp_path / "old", tiny_generators.build(name)).folder
    (edit_tensors, pickle_weights)[at % 2](old, beside(extra))
    checkpoint = opened(old)
    model, unexpected, _ = reported(old, auto_class(name))
    assert superfluous_tensors(checkpoint, auto_class(name), headless=False) == unexpected
    assert same_values(model, reported(sound.folder, auto_class(name))[0])
    write_engine_folder(sound, tmp_path / "a", FORMATS["fp32"], 127)
    write_engine_folder(checkpoint, tmp_path / "b", FORMATS["fp32"], 127)
    assert (tmp_path / "a/weights.bin").read_bytes() == (tmp_path / "b/weights.bin").read_bytes()


@pytest.mark.parametrize("name", tiny_generators.CLASSES)
def test_the_report_about_a_generator_is_transformers_own(tmp_path: Path, name: str) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build(name))
    edit_tensors(tmp_path, lambda tensors: old_names(tensors) | {"further.weight": torch.zeros(3)})
    model, unexpected, missing = reported(tmp_path, auto_class(name))
    assert superfluous_tensors(checkpoint, auto_class(name), headless=False) == unexpected == ["further.weight"]
    assert not missing and same_values(model, load_model(checkpoint, auto_class(name), headless=False))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp32"], 127)


@pytest.mark.parametrize(
    ("model_type", "auto_class"),
    [(name, (CLASSIFIER, MASKED, BARE)[at % 3]) for at, name in enumerate(tiny_encoders.CONFIGS)],
)
def test_the_report_about_an_encoder_is_transformers_own(tmp_path: Path, model_type: str, auto_class: str) -> None:
    def edit(tensors: Tensors) -> Tensors:
        return old_names(tensors) | {"further.weight": torch.zeros(3), "cls.further.bias": torch.zeros(3)}

    checkpoint = saved_encoder(tmp_path, model_type, auto_class, edit)
    model, unexpected, missing = reported(tmp_path, auto_class)
    assert superfluous_tensors(checkpoint, auto_class, headless=False) == unexpected
    assert "further.weight" in unexpected and not missing
    assert same_values(model, load_model(checkpoint, auto_class, headless=False))


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta", "deberta-v2", "electra", "modernbert"])
def test_a_classifier_beside_leftovers_answers_as_in_transformers(
    tmp_path: Path, model_type: str, pickled: bool
) -> None:
    base = tiny_encoders.build(model_type, TOKENS).base_model_prefix
    extra = {name.format(f"{base}."): value for name, value in LEFTOVERS.items()}
    checkpoint = saved_encoder(tmp_path, model_type, TOKENS, beside(extra), pickled)
    model, unexpected, _ = reported(tmp_path, TOKENS)
    assert superfluous_tensors(checkpoint, TOKENS, headless=False) == unexpected
    assert {"loss_fct.weight", "lm_head.weight"} <= {*unexpected}
    ids = torch.tensor([[5, 9, 17, 33, 64, 2]])
    with torch.inference_mode():
        ours = load_model(checkpoint, TOKENS, headless=False)(input_ids=ids).logits
        assert torch.equal(ours, model(input_ids=ids).logits)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("kind", ["encoder", "bare encoder", "decoder", "encoder-decoder"])
def test_a_model_that_was_saved_in_its_wrapper_is_refused_with_the_prefix(
    tmp_path: Path, kind: str, prefix: str
) -> None:
    if kind in ("decoder", "encoder-decoder"):
        name = "gpt2" if kind == "decoder" else "t5"
        generator_checkpoints.save(tmp_path, name)
    else:
        tiny_checkpoints.save(tmp_path, tiny_checkpoints.bert("Model" if kind == "bare encoder" else "ForMaskedLM"))
    edit_tensors(tmp_path, lambda tensors: {prefix + name: value for name, value in tensors.items()})
    with pytest.raises(CheckpointCorrupt) as refused:
        make_plan(open_checkpoint(str(tmp_path)), ExportOptions())
    assert repr(prefix) in refused.value.message and repr(prefix) in refused.value.fix


@pytest.mark.parametrize("name", ["gpt2-untied", "llama", "neox", "bart-untied"])
def test_a_generator_without_its_head_is_refused_for_the_head(tmp_path: Path, name: str) -> None:
    tiny_generators.save(tmp_path, tiny_generators.build(name))
    heads = ("lm_head.weight", "embed_out.weight")
    edit_tensors(tmp_path, lambda tensors: {key: value for key, value in tensors.items() if key not in heads})
    for read in (superfluous_tensors, load_model):
        with pytest.raises(CheckpointCorrupt, match=r"lacks tensors: (lm_head|embed_out)\.weight\."):
            read(opened(tmp_path), auto_class(name), headless=False)


@pytest.mark.parametrize(("kind", "dry"), [("generator", True), ("classifier", True), ("classifier", False)])
def test_an_export_names_the_tensors_that_it_leaves_out_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, dry: bool
) -> None:
    if kind == "generator":
        names = [f"transformer.h.{at}.attn.masked_bias" for at in range(2)]
        generator_checkpoints.save(tmp_path / "model", "gpt2")
    else:
        names = ["lm_head." + "x" * 100_000, "loss_fct.weight"]
        tiny_checkpoints.save(tmp_path / "model", tiny_checkpoints.bert())
    edit_tensors(tmp_path / "model", beside({name: torch.ones(3) for name in names}))
    options = ["--repository", str(tmp_path / "repository"), "--name", "m", "--device", "cpu", "--precision", "fp32"]
    assert main(["export", str(tmp_path / "model"), *options, *(["--dry-run"] if dry else [])]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert all(name[:60] in line for name in names) and len(line) < 1000
    assert (tmp_path / "repository/m").exists() != dry


def test_a_dry_run_of_a_config_without_weights_compares_nothing(tmp_path: Path) -> None:
    tiny_checkpoints.save(tmp_path, tiny_checkpoints.bert())
    (tmp_path / "model.safetensors").unlink()
    assert make_plan(open_config(str(tmp_path)), ExportOptions()).notes == ()


def test_a_dry_run_refuses_a_checkpoint_of_another_task(tmp_path: Path) -> None:
    tiny_checkpoints.save(tmp_path, tiny_checkpoints.bert())
    with pytest.raises(CheckpointCorrupt, match="qa_outputs"):
        make_plan(open_config(str(tmp_path)), ExportOptions(task="question-answering"))
