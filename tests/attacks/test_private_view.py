"""No library sees what a folder holds beside a checkpoint: code, pipes, or paths to elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe
from hfx.exporter.checkpoint_files import MAX_TOKENIZER_BYTES, TOKENIZERS
from hfx.exporter.encoder.checkpoint.architectures import DECODERS, ENCODERS, TEXT_ENCODERS
from hfx.exporter.families import FAMILIES
from hfx.exporter.families.family import resolve_config
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.load import load_model
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from tests.attacks.damage import edit_json, load, refused
from tests.rigs.checkpoints import tiny_generators


def file_names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def add_code(folder: Path, marker: Path) -> None:
    """Add code in every place that transformers 4 or 5 runs it from; the code would create `marker`."""
    code = f"open({str(marker)!r}, 'w').close()\ndef generate(model, **settings): raise SystemExit\nclass Evil: pass\n"
    for name in ("evil.py", "modeling_evil.py", "custom_generate/generate.py", "handler.py", "pipeline.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    (folder / "custom_generate" / "requirements.txt").write_text("hfx\n")
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "evil.jinja").write_text("{{ 1 }}")
    for name in ("processor_config.json", "preprocessor_config.json", "config.5.0.0.json"):
        (folder / name).write_text(json.dumps({"auto_map": {"AutoProcessor": "evil.Evil"}}))
    kinds = ("Config", "Model", "Tokenizer", "ModelForCausalLM", "ModelForSeq2SeqLM", "ModelForSequenceClassification")
    auto_map: dict[str, Any] = {f"Auto{kind}": "evil.Evil" for kind in kinds}
    edit_json(folder / "config.json", auto_map=auto_map)
    edit_json(folder / "tokenizer_config.json", auto_map=auto_map | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]})


def test_the_view_has_the_files_of_a_checkpoint_alone(folder: Path, tmp_path: Path) -> None:
    good = file_names(folder)
    add_code(folder, tmp_path / "ran")
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    (folder / "other.safetensors").write_bytes(b"junk")
    view = open_checkpoint(str(folder)).view
    assert file_names(view) == good | {"chat_template.jinja"}  # a text, which only the front renders, in a sandbox
    assert [name for name in good if (view / name).is_symlink()] == ["model.safetensors"]
    assert (view / "model.safetensors").resolve() == folder / "model.safetensors"


def test_no_code_of_an_encoder_runs(folder: Path, tmp_path: Path) -> None:
    add_code(folder, tmp_path / "ran")
    load(folder)
    assert not (tmp_path / "ran").exists()
    checkpoint = open_checkpoint(str(folder))
    model = load_model(checkpoint, "AutoModelForSequenceClassification", headless=False)
    assert model.config.name_or_path == load_tokenizer(checkpoint).name_or_path == str(checkpoint.view)


@pytest.mark.parametrize("family", ["gpt2", "bart", "t5"])
def test_no_code_of_a_generator_runs(tmp_path: Path, family: str) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / family
    words = {f"w{number}": number for number in range(tiny_generators.VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    tiny_generators.save(folder, tiny_generators.build(family, bos_token_id=2, eos_token_id=2))
    tokenizer.save_pretrained(folder)
    add_code(folder, tmp_path / "ran")
    plan = make_plan(open_checkpoint(str(folder)), ExportOptions())
    resolve_config(plan.checkpoint)
    torch_generator = TorchGenerator.open(plan, load_tokenizer(plan.checkpoint))  # type: ignore[arg-type]
    (ids,), _ = torch_generator.generate([(3, 4)], max_new_tokens=3, num_beams=1, do_sample=False)
    assert 1 <= len(ids) <= 3
    assert not (tmp_path / "ran").exists()
    assert torch_generator.model.config.name_or_path == str(plan.checkpoint.view)


def test_the_views_of_killed_processes_are_removed_by_the_next(folder: Path, tmp_path: Path) -> None:
    script = "import os, sys; from hfx.exporter.source import open_checkpoint; open_checkpoint(sys.argv[1]).view; "
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    def start(then: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-c", script + then, str(folder)], subprocess.PIPE
        return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)

    alive = start("print(flush=True); input()")
    assert alive.stdout and alive.stdout.readline()
    assert start("os.kill(os.getpid(), 9)").wait() == -9
    assert len(list(tmp_path.glob("hfx-views-*"))) == 2
    assert start("").wait() == 0
    assert len(list(tmp_path.glob("hfx-views-*"))) == 1
    alive.communicate("\n")
    assert not list(tmp_path.glob("hfx-views-*"))


def make_socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path may have 108 bytes only
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


@pytest.mark.parametrize("make", [os.mkfifo, make_socket], ids=["pipe", "socket"])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "more/trainer.json", "x"]
)
def test_a_pipe_or_socket_in_a_checkpoint_is_refused_and_not_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], name: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name)
    refused(CheckpointUnsafe, folder / name, lambda: open_checkpoint(str(folder)))


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json"])
def test_a_pipe_that_appears_after_the_check_does_not_block(folder: Path, name: str) -> None:
    checkpoint = open_checkpoint(str(folder))
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(CheckpointCorrupt, name, lambda: checkpoint.view)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_a_huge_tokenizer_is_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as stream:
        stream.truncate(MAX_TOKENIZER_BYTES + 1)
    message = refused(CheckpointCorrupt, folder / name, lambda: load(folder))
    assert "64 MB" in message


def test_a_folder_in_the_place_of_a_tokenizer_is_corrupt(folder: Path) -> None:
    (folder / "spiece.model").mkdir()
    refused(CheckpointCorrupt, "spiece.model", lambda: load(folder))


@pytest.mark.parametrize("field", ["vocab_file", "added_tokens_file", "vocab", "source_spm"])
@pytest.mark.parametrize("path", ["/nowhere/of/its/writer.json", "gone.txt", "/dev/stdin"])
def test_a_path_in_a_tokenizer_config_is_not_followed(folder: Path, field: str, path: str) -> None:
    expected = load_tokenizer(open_checkpoint(str(folder))).get_vocab()
    edit_json(folder / "tokenizer_config.json", **{field: path})
    checkpoint = open_checkpoint(str(folder))
    assert load_tokenizer(checkpoint).get_vocab() == expected
    assert path not in (checkpoint.view / "tokenizer_config.json").read_text()


def test_a_tokenizer_beside_the_folder_is_not_taken(folder: Path) -> None:
    expected = load_tokenizer(open_checkpoint(str(folder))).get_vocab()
    other = json.loads((folder / "tokenizer.json").read_text())
    other["model"]["vocab"]["film"], other["model"]["vocab"]["cat"] = expected["cat"], expected["film"]
    (folder.parent / "tokenizer.1.0.json").write_text(json.dumps(other))
    edit_json(folder / "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.1.0.json"])
    assert load_tokenizer(open_checkpoint(str(folder))).get_vocab() == expected


def test_a_config_in_the_place_of_config_json_is_unsafe(folder: Path) -> None:
    shutil.copy(folder / "config.json", folder / "config.4.0.0.json")
    edit_json(folder / "config.json", configuration_files=["config.4.0.0.json"])
    refused(CheckpointUnsafe, "configuration_files", lambda: open_checkpoint(str(folder)))


def test_the_view_has_every_tokenizer_file_of_the_supported_architectures() -> None:
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    supported = {*ENCODERS, *DECODERS, *TEXT_ENCODERS, *(name for family in FAMILIES for name in family.model_types)}
    listed = [TOKENIZER_MAPPING_NAMES.get(name) for name in supported]
    classes = {name for names in listed for name in (names if isinstance(names, tuple) else (names,)) if name}
    files = {file for name in classes for file in getattr(transformers, name).vocab_files_names.values()}
    assert files - {"tokenizer_config.json"} <= set(TOKENIZERS)
