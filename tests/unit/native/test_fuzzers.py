"""What reads bytes from outside refuses them, or reads what they say: the targets of fuzz.cpp.

Every run has the seeds, inputs that once found a fault, and random changes of them. Where there is clang, a run of all
tests fuzzes each target for HFX_FUZZ_SECONDS, guided by coverage, with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from hfx.exporter.compiled_tokenizer import compile_tokenizer
from hfx.exporter.compiled_tokenizer.graphemes import charsmap
from hfx.exporter.compiled_tokenizer.proof import first_difference
from hfx.native import build
from hfx.native.tokenizers import CompiledTokenizer
from tests.rigs.machine.tiers import full
from tests.unit.native.libraries import NATIVE, build_key
from tests.unit.native.native_rows import compiled as compiled_rows
from tests.unit.native.test_backend import KEY, OWN, WRAPPED, compiled, config
from tests.unit.native.test_native_json import check_json
from tests.zoo import tokenization
from tests.zoo.cache import built, report

HERE = Path(__file__).parent
SOURCES = {  # and the processor that each is compiled for
    HERE / "fuzz.cpp": "x86-64",
    NATIVE / "adapter_operators.cpp": "x86-64",
    NATIVE / "x86" / "floats_avx.cpp": "x86-64-v3",
}
RUNTIME = Path("../../libonnxruntime.so")  # from the folder of a model's version
SECONDS = os.environ.get("HFX_FUZZ_SECONDS", "60")
TARGETS = ("file", "text", "json", "model", "request", "pool", "adapters")
LINES = ("Anna went from Paris to the market in Berlin. The weather was awful!", "Don't you think it's a 'nice' day?")
TEXTS = (*LINES, "café é 你好 가 \U0001f468\u200d\U0001f469", " a [SEP]  <mask>x\n new word caf <l> b", "12,345")
ADDED = (AddedToken("new word"), AddedToken("caf", single_word=True), AddedToken("<l>", lstrip=True, rstrip=True))
# The target `file` changes the compiled files of the first five.
KINDS = ("bert-cased", "t5", "roberta", "xlm-roberta", "albert", "deberta-v2", "bert", "mpnet", "gpt2")
NORMALIZERS = {  # in place of the kind's; the second one is a table of characters, as SentencePiece has it
    0: normalizers.BertNormalizer(False, False, False, False),
    1: normalizers.Precompiled(charsmap({"é".encode(): "e", "e\u0301".encode(): "e", b"a": "b"})),
}
CLASSES = {"task": "text-classification", "labels": ["no", "yes"], "activation": "softmax"}
RANKING = {"task": "text-ranking", "activation": "sigmoid"}
ZERO_SHOT = {"task": "zero-shot-classification", "entailment": 0, "contradiction": 1}
PROMPTS = {"prompts": {"a": "the weather ", "b": ""}, "default_prompt": "a"}
MODELS: tuple[
    tuple[dict[str, Any], str, str, Mapping[str, Any]], ...
] = (  # answer, settings of requests, tokenizer, more
    (CLASSES, "top_k", "6.hfx", {}),
    (CLASSES, "top_k long stride", "2.hfx", {"stride": 2}),
    ({"task": "feature-extraction"}, "dimensions prompt prompt_name", "3.hfx", {**PROMPTS, "pools_prompt": False}),
    (RANKING, "raw_scores prompt prompt_name", "1.hfx", PROMPTS),
    (ZERO_SHOT, "top_k multi_label", "4.hfx", {"truncation_side": "left", "max_length": 64, "widths": [64]}),
)
FINDINGS = (  # two tensors of one name: one `long` for two texts
    (
        "request",
        b"\1\0\0\0\2\4\0\0\0\0\0mean\xff\0\1\0" + 2 * (b"\0" * 6 + b"c" * 60 + b"\xff\0\1\0") + b"\0\4",
    ),
)


def program(sanitizer: str) -> Path:
    """Return the program of fuzz.cpp, with the objects of the backend's tests. Skips the test if it can't be built."""
    if build.MACHINE != "x86_64":
        pytest.skip("the kernels that the targets run are of x86-64")
    backend = compiled(sanitizer)[0].parent
    key = build_key([str(backend), *SOURCES.values()], [*SOURCES, HERE / "stub_triton.cpp", Path(__file__)])
    engine = "-fsanitize=fuzzer" if sanitizer == "fuzzer" else "-DFUZZ_MAIN"

    def compile_all(folder: Path) -> dict[str, Any]:
        command = [*report(backend)["command"], f"-I{NATIVE / 'x86'}"]
        objects = [path for path in backend.glob("*.o") if not path.name.endswith("stub_triton.o")]
        for source, processor in SOURCES.items():
            own = OWN if source.parent != HERE else ["-DFUZZ_MAIN"] if engine == "-DFUZZ_MAIN" else []
            objects.append(folder / f"{source.stem}.o")
            subprocess.run([*command, *own, f"-march={processor}", "-c", source, "-o", objects[-1]], check=True)
        subprocess.run([*command, engine, *objects, *WRAPPED, "-o", folder / "fuzz"], check=True)
        return {}

    return built(f"fuzz-{sanitizer}", key, compile_all) / "fuzz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the targets, and their seeds in `seeds/TARGET`."""
    root = tmp_path_factory.mktemp("fuzz")
    for at, kind in enumerate(KINDS):
        made = tokenization.train(kind, LINES, 300, 64).backend_tokenizer
        made.no_padding()
        made.normalizer = NORMALIZERS.get(at, made.normalizer)
        made.add_tokens(list(ADDED) if at % 2 else [])
        made.save(str(root / f"tokenizer-{at}.json"))
        (root / f"{at}.hfx").write_bytes(compile_tokenizer(root / f"tokenizer-{at}.json"))
    models = [model(root, str(at), *each) for at, each in enumerate(MODELS)]
    model(root, "any", *MODELS[0])
    for number, name in ((101, "settings.json"), (102, "answer.json"), (103, "adapter.bin")):
        (root / "any" / "1" / name).unlink(missing_ok=True)
        (root / "any" / "1" / name).symlink_to(f"/proc/self/fd/{number}")
    for target, inputs in seeds(models).items():
        (root / "seeds" / target).mkdir(parents=True)
        for at, content in enumerate([*inputs, *(found for of, found in FINDINGS if of == target)]):
            (root / "seeds" / target / f"{at:03}").write_bytes(content)
    return root


def model(
    root: Path, name: str, answer: Mapping[str, Any], options: str, tokenizer: str, more: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Write the folder of a model; return its configuration, its settings and those of its answer."""
    version, ranks = root / name / "1", answer == RANKING
    version.mkdir(parents=True)
    (version / "tokenizer.hfx").symlink_to(root / tokenizer)
    (version / (graph := "one.onnx" if ranks else "model.onnx")).touch()
    inputs = [{"name": "text_input"}, *({"name": each, "optional": True} for each in options.split())]
    outputs = ["logits"] if answer["task"] == "feature-extraction" else ["label", "score"][ranks:]
    changed = {"input": inputs, "output": [{"name": each} for each in [*outputs, "truncated_tokens"]]}
    tensors = ["input_ids", "attention_mask"]
    settings = {"task": answer["task"], "max_length": 16, "widths": [4, 8, 16], "inputs": tensors, **more}
    made = config(RUNTIME, changed, model_file=graph, skips_padding="1"), json.dumps(settings), json.dumps(answer)
    for path, text in zip(
        (root / f"{name}.json", version / "settings.json", version / "answer.json"), made, strict=True
    ):
        path.write_text(text)
    return made


def seeds(models: list[tuple[str, str, str]]) -> dict[str, list[bytes]]:
    """Return the inputs that each target begins with, of the JSON texts of `models` too."""
    shared = models[0][0].replace('"parameters": {', f'"parameters": {{"shared_net": {{"string_value": "{KEY}"}}, ')
    escapes = rb'[1, -2.5e+3, true, false, null, "\ud83d\ude00\n", {}]'
    beside = {1: [tensor(4, "mean")], 2: [tensor(9, "b")], 3: [tensor(1, "why")], 4: [tensor(2, "day", "x")]}  # a text
    requests = [(at, [tensor(0, text), *beside.get(at, [])]) for at in range(len(MODELS)) for text in TEXTS]
    pools = [((low, 10), b"\1\0\0" + bytes([low, 10]) + b"\0\0\x80?\0") for low in (0, 100, 200)]  # numbers: all are 1
    return {
        "file": [bytes([at, section, 1, 3, 1]) for at in range(5) for section in range(1, 32, 3)] + [b"\x81\0\1\0\0"],
        "text": [bytes([at]) + b"\xff".join(map(str.encode, TEXTS)) for at in range(len(KINDS))],
        "json": [escapes, *(text.encode() for each in models for text in each)],
        "model": ["\0".join([*each, "\0" * 32]).encode() for each in [*models, (shared, *models[0][1:])]],
        "request": [bytes([at, 0, 0, 0, len(all_) - 1]) + b"".join(all_) + b"\0\4" for at, all_ in requests],
        "pool": [bytes(size) + load + b"\1" + load + b"\0\0\1" + load for size, load in pools],
        "adapters": [bytes([at, 16, 2, 3, 0, 0, 0, 7]) + bytes([7, 0, 3, 0] * 20) for at in range(0, 60, 3)],
    }


def tensor(name: int, *texts: str) -> bytes:
    """Return the bytes of which the target `request` makes a tensor with a text in each row."""
    return bytes([name, 0, 0, 0, 0, 0]) + b"".join(text.encode() + b"\xff" for text in texts) + b"\0\1\0"


def run(target: str, folder: Path, sanitizer: str, *arguments: Path | str) -> str:
    """Run a target in `folder`; return what it printed."""
    options = {"ASAN_OPTIONS": "allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1", "STUB_PAUSE": "0"}
    command = [program(sanitizer), *arguments]
    (folder / RUNTIME.name).unlink(missing_ok=True)
    (folder / RUNTIME.name).symlink_to(compiled(sanitizer)[1])
    environment = os.environ | options | {"FUZZ_TARGET": target}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-8000:]
    return done.stderr


@pytest.mark.parametrize(("sanitizer", "changes"), [("plain", "30"), full("addresses", "200")])
@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_random_changes_of_them_are_read(target: str, sanitizer: str, changes: str, folder: Path) -> None:
    run(target, folder, sanitizer, changes, *sorted((folder / "seeds" / target).iterdir()))


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzing_guided_by_coverage_finds_nothing(target: str, folder: Path, tmp_path: Path) -> None:
    corpus = Path(os.environ.get("HFX_FUZZ_CORPUS") or tmp_path).resolve() / target
    corpus.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={SECONDS}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=4096"]
    printed = run(target, folder, "fuzzer", *limits, f"-artifact_prefix={corpus}-", corpus, f"seeds/{target}")
    print(target, *(line for line in printed.splitlines() if "DONE" in line))
    for path in corpus.iterdir() if target in ("json", "text") else ():
        if target == "json":
            check_json(compiled_rows(), path.read_bytes())
        else:
            check_ids(path.read_bytes(), folder)


def check_ids(content: bytes, folder: Path) -> None:
    """Check that the texts of an input have the library's ids."""
    number = content[0] % len(KINDS) if content else 0
    texts = [text for raw in content[1:].split(b"\xff")[:8] if (text := raw.decode(errors="ignore")).encode() == raw]
    library = Tokenizer.from_file(str(folder / f"tokenizer-{number}.json"))
    compiled_tokenizer = CompiledTokenizer(folder / f"{number}.hfx", Path(compiled_rows()._name))
    assert first_difference(compiled_tokenizer, library, iter(texts)) is None
