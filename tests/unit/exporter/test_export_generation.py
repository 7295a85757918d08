"""A generator from its checkpoint to a published, verified model; and exports that are refused on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.cli import main
from hfx.deploy.deployment import needs
from hfx.errors import VerificationFailed
from hfx.exporter.generation.steps import STEPS
from hfx.local.generator import LocalGenerator
from hfx.manifest import Manifest, verify_files
from hfx.python_backends.engine.prefix_cache import DEFAULT_MB
from hfx.python_backends.engine.spec import read_spec
from hfx.releases import MINIMUM_SECURE
from hfx.repository import lint, models
from tests.rigs.checkpoints import generator_checkpoints, tiny_generators
from tests.rigs.checkpoints.published import export_checkpoint, few_texts

pytestmark = pytest.mark.slow
GENERATION = {
    "gpt2": {"max_new_tokens": 12},
    "llama": {"max_new_tokens": 12},
    "bart": {"max_length": 18, "num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "min_length": 5},
    "t5": {"max_new_tokens": 10},
}
TEXT = "hello world."
WHOLE = ("gpt2",)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    for family in generator_checkpoints.FAMILIES:
        generator_checkpoints.save(folder / family, family, GENERATION[family])
    return lambda family: folder / family


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, checkpoints: Callable[[str], Path]) -> Path:
    """A repository with a model of every family, exact in fp32; those of WHOLE are compared on all texts."""
    folder = tmp_path_factory.mktemp("repository")
    for family in generator_checkpoints.FAMILIES:
        with nullcontext() if family in WHOLE else few_texts(2):
            export_checkpoint(checkpoints(family), folder, name=family)
    return folder


@pytest.fixture(params=generator_checkpoints.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def generator(repository: Path, family: str) -> Iterator[LocalGenerator]:
    with LocalGenerator.open(repository, family) as opened:
        yield opened


def manifest_of(repository: Path, name: str) -> Manifest:
    found = next(entry for entry in models(repository) if entry.name == name)
    assert found.manifest is not None
    return found.manifest


def test_a_model_is_two_folders_that_break_no_rule(repository: Path, family: str) -> None:
    manifest = manifest_of(repository, family)
    assert manifest.folders == (family, f"{family}_stream")
    assert verify_files(manifest, repository) == []
    assert lint(repository) == []
    version = repository / f"{family}_stream" / "1"
    for name in ("model.py", "generation.json", "tokenizer.json", "cpu/engine.json", "engine/engine.py",
                 "generation/generator.py", "inputs.py"):  # fmt: skip
        assert (version / name).is_file(), name
    assert (repository / family / "1" / "model.py").is_file()


def test_the_manifest_says_what_was_verified_and_decided(repository: Path, family: str) -> None:
    manifest = manifest_of(repository, family)
    figures: Any = manifest.parity["cpu"]
    assert figures["forced"]["agreement"] == figures["agreement"] == 1.0
    assert figures["forced"]["delta_share"] < 1e-4
    assert figures["greedy"]["same"] + figures["greedy"]["ties"] == 1.0
    assert figures["beams"]["num_beams"] == (3 if family == "bart" else 4)
    assert figures["beams"]["same"] + figures["beams"]["ties"] >= 0.99
    assert figures["greedy"]["batch_variants"] == figures["beams"]["batch_variants"] == 0
    assert figures["texts"]["same"] >= 0.98
    choices: Any = manifest.choices
    if family in WHOLE:
        counts = [figures["greedy"]["texts"], figures["beams"]["texts"], choices["verified_by"]["texts"]]
        assert min(counts) >= 100
        # Of a decoder's 80 positions, eight are steps behind the prompt, and one is a new token's.
        longest = 71 if family in tiny_generators.DECODERS else generator_checkpoints.LONGEST
        assert (figures["long"]["longest"], figures["long"]["agreement"]) == (longest, 1.0)
    assert choices["minimum_onnxruntime"]
    assert choices["formats"]["cpu"]["precision"] == "fp32"
    assert choices["peak_rss_mb"] > 0
    assert (manifest.opset, manifest.ir) > (10, 5)
    assert (manifest.triton.built_for, manifest.triton.minimum) == ("24.10", "24.12")  # for onnxruntime 1.31


def test_texts_equal_those_of_transformers(
    generator: LocalGenerator, family: str, checkpoints: Callable[[str], Path]
) -> None:
    import torch
    import transformers

    folder = checkpoints(family)
    decodes = family in tiny_generators.DECODERS
    auto: Any = transformers.AutoModelForCausalLM if decodes else transformers.AutoModelForSeq2SeqLM
    model, tokenizer = auto.from_pretrained(folder).eval(), generator_checkpoints.tokenizer()
    for text in (TEXT, "a", "the end of the story", "zz top. and so on and on."):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            # Transformers sizes the cache by a T5's encoder, which has fewer layers here.
            found = model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=family != "t5")[0]
        new = found[ids.shape[1] :] if decodes else found[1:]
        expected = tokenizer.decode(new, skip_special_tokens=True)
        assert generator.infer({"text_input": text})["text_output"] == expected


def test_an_answer_has_the_tensors_of_the_contract(generator: LocalGenerator) -> None:
    answer = generator.infer({"text_input": TEXT, "max_tokens": 3, "num_beams": 1})
    assert answer == {
        "text_output": answer["text_output"],
        "finish_reason": answer["finish_reason"],
        "input_tokens": len(TEXT),
        "output_tokens": answer["output_tokens"],
        "truncated_tokens": 0,
    }
    assert answer["finish_reason"] in ("stop", "length")
    assert 1 <= answer["output_tokens"] <= 3


def test_the_memory_for_keys_and_values_counts_heads_that_share_them_once(repository: Path) -> None:
    spec = read_spec(repository / "llama_stream" / "1" / "cpu")
    assert (spec.heads, spec.kv_heads) == (6, 3)
    manifest = manifest_of(repository, "llama")
    slots: Any = manifest.choices["slots"]
    found = needs(repository, manifest, "cpu", MINIMUM_SECURE)
    rows = 2 * 4 * slots * spec.layers * spec.kv_heads * spec.head_dim * spec.max_length
    assert found.cache == rows + (DEFAULT_MB << 20)  # the prefix cache


# What the gate keeps out


def contents(repository: Path) -> dict[str, bytes]:
    files = [path for path in sorted(repository.rglob("*")) if path.is_file() and path.name != ".hfx-lock"]
    return {str(path.relative_to(repository)): path.read_bytes() for path in files}


@pytest.mark.usefixtures("few_texts")
def test_quantization_that_changes_tokens_is_not_published(
    tmp_path: Path, checkpoints: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(checkpoints("gpt2")), "--precision", "int8", "--device", "cpu", "--max-drop", "0",
             "--cpu-runtime", "onnxruntime", "--strict"]  # fmt: skip
    assert main([*words, "--repository", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "like the checkpoint" in said
    assert "--verify-data" in said
    assert contents(tmp_path) == {}


def damage(plan: Any, made: Any) -> Any:
    """Change the sign of a few weights."""
    file = made.version / "cpu" / "weights.bin"
    weights = np.fromfile(file, np.float32)
    weights[len(weights) // 2 :: 97] *= -1
    weights.tofile(file)
    return made


@pytest.mark.usefixtures("least_texts")
def test_a_generator_with_a_damaged_graph_is_not_published(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    steps = [STEPS[0], STEPS[1], replace(STEPS[1], run=damage), *STEPS[2:]]
    with pytest.raises(VerificationFailed, match="largest difference"):
        export_checkpoint(checkpoints("t5"), tmp_path, steps, name="m")
    assert contents(tmp_path) == {}


@pytest.mark.usefixtures("least_texts")
def test_other_tokens_than_the_checkpoint_s_are_not_published(
    tmp_path: Path, checkpoints: Callable[[str], Path]
) -> None:
    def edit(plan: Any, made: Any) -> Any:
        file = made.version / "tokenizer.json"
        file.write_text(file.read_text().replace('"b": 2', '"b": 3').replace('"c": 3', '"c": 2'))
        return made

    steps = [*STEPS[:4], replace(STEPS[3], run=edit), *STEPS[4:]]
    with pytest.raises(VerificationFailed, match="tokenizer"):
        export_checkpoint(checkpoints("t5"), tmp_path, steps, name="m")


@pytest.mark.usefixtures("few_texts")
def test_verify_data_decides_instead_of_bundled_texts(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    """The fastest int4 format is taken here, as all tokens may change."""
    data = tmp_path / "data.csv"
    rows = [f"{word} {other},x" for word in ("one", "two", "three", "four") for other in ("cat", "dog", "fox")]
    data.write_text("\n".join(["text,target", *rows]) + "\n")
    options = {"precision": "int4", "max_drop": 1.0, "verify_data": (data,)}
    manifest = export_checkpoint(checkpoints("t5"), tmp_path / "r", name="m", **options)
    figures: Any = manifest.parity
    assert figures["cpu"]["forced"]["texts"] == "verify-data"
    assert 0.0 < figures["cpu"]["forced"]["bundled_agreement"] <= 1.0
    assert figures["data"]["data.csv"] == {"metric": "exact_match", "rows": 12, "torch": 0.0, "cpu": 0.0}
    formats: Any = manifest.choices["formats"]
    assert (formats["cpu"]["head"], formats["cpu"]["block"]) == ("int4", 128)
    assert "tried" not in formats["cpu"]


# The command line


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_infer_prints_texts_or_one_object(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["infer", "bart", TEXT, "a cat", "--local", "--repository", str(repository), "--max-tokens", "6"]
    with LocalGenerator.open(repository, "bart") as generator:
        expected = generator.infer_all([{"text_input": text, "max_tokens": 6} for text in (TEXT, "a cat")])
    code, out, _ = run(capsys, *words)
    assert (code, out) == (0, "".join(f"{each['text_output']}\n" for each in expected))
    code, out, _ = run(capsys, "--json", *words)
    printed = json.loads(out)
    assert code == 0
    assert printed == {"model": "bart", "results": expected, "latency_ms": printed["latency_ms"]}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--max-tokens 0", "max_tokens"),
        ("--num-beams 2 --sample", "do_sample"),
        ("--early-stopping maybe", "early-stopping"),
        ("--long cut", "--long"),
        ("--stream --num-beams 2 --num-return-sequences 2", "num_return_sequences"),
    ],
)
def test_invalid_options_of_hfx_infer_are_refused(
    repository: Path, options: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "infer", "gpt2", TEXT, "--local", "--repository", str(repository), *options.split())
    assert (code, out.strip()) == (2, "")
    assert field in err
    assert "Traceback" not in err


def test_verify_and_list_know_generators(repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "verify", "bart", "--repository", str(repository), "--json")
    assert code == 0, err
    assert json.loads(out)["parity"]["same"] == pytest.approx(1.0, abs=0.02)
    data = tmp_path / "data.csv"
    data.write_text("text,summary\nhello,x\nworld,y\n")
    words = ["verify", "bart", "--repository", str(repository), "--data", str(data)]
    code, out, err = run(capsys, *words, "--metric", "rouge", "--json")
    assert code == 0, err
    assert json.loads(out)["data"] == {"file": "data.csv", "metric": "rouge", "rows": 2, "value": 0.0}
    assert run(capsys, *words, "--min", "0.5")[0] == 4
    assert run(capsys, *words, "--metric", "accuracy")[0] == 2
    code, out, _ = run(capsys, "list", str(repository))
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(generator_checkpoints.FAMILIES)


def test_a_damaged_recording_is_a_damaged_model(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    copy = Path(shutil.copytree(repository, tmp_path / "copy"))
    (copy / "t5" / "reference.json").write_text("{}")
    assert run(capsys, "verify", "t5", "--repository", str(copy))[0] == 3
    (copy / "t5_stream" / "1" / "generation.json").write_text("{}")
    assert run(capsys, "infer", "t5", TEXT, "--local", "--repository", str(copy))[0] == 3


def test_dry_run_prints_the_plan(
    checkpoints: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, "--json", "export", str(checkpoints("t5")), "--quantize", "--slots", "8",
                         "--cpu-runtime", "native", "--dry-run", "--repository", str(tmp_path / "r"))  # fmt: skip
    assert code == 0, err
    plan = json.loads(out)
    assert plan["precision"] == {"cpu": "int8", "gpu": "fp16"}
    assert plan["slots"] == 8
    assert plan["cpu_runtime"] == "native"
    assert not (tmp_path / "r").exists()


INTERRUPTED = """
import os, signal, sys, threading
from hfx.cli import main
from hfx.cli.output import Reporter

seen = threading.Event()
show = Reporter.piece

def piece(self, text):
    show(self, text)
    seen.set()

Reporter.piece = piece

def interrupt():
    seen.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_in_a_stream_ends_it_with_130(repository: Path) -> None:
    words = ["infer", "t5", *[TEXT] * 400, "--stream", "--local", "--repository", str(repository)]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) < 400
