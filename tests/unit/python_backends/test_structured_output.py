"""Structured output from text to text: grammars are compiled or refused, for tokenizers of every kind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.engine.generation_settings import Texts
from hfx.python_backends.errors import InvalidRequest, QueueFull
from hfx.python_backends.generation.detokenizer import Detokenizer
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.generation.grammar_process import TOO_SLOW, GrammarProcess, error_of
from hfx.python_backends.generation.grammars import KEPT, LIMITS, GrammarCompiler, TokenMatcher, written
from hfx.python_backends.generation.pieces import join_texts
from hfx.python_backends.generation.vocabulary import read_vocabulary
from tests.rigs.checkpoints.generation_tokenizers import byte_fallback, byte_level, unigram, word_ends, word_pieces
from tests.rigs.engine import random_grammars
from tests.rigs.engine.generation_models import write_model
from tests.rigs.machine.waiting import wait_until

Ask = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    with TextGenerator.open(write_model(tmp_path_factory.mktemp("decoder")), slots=8, threads=1) as generator:
        yield generator


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    defaults = {"min_tokens": 9, "no_repeat_ngram_size": 1, "stop_words": ["a"]}
    folder = write_model(tmp_path_factory.mktemp("summarizer"), max_source=48, defaults=defaults)
    with TextGenerator.open(folder, slots=8, threads=1) as generator:
        yield generator


def asks(seed: int, count: int) -> list[Ask]:
    """Return requests with all decoding methods, most of them with a structured output that letters can write."""
    draw = random.Random(seed)
    regexes = ("[a-m]{3,9}", "(the|a) (cat|dog) sat.", "(ab|cd)+", "[a-z ]*", "z?x{2}(y|z)*")
    some: list[dict[str, Any]] = [{}, {"choices": ("dog", "cow", "do")}, *({"regex": each} for each in regexes)]
    found = []
    for number in range(count):
        kinds: tuple[dict[str, Any], ...] = (
            {},
            {"num_beams": 3},
            {"temperature": 2.0, "seed": number},
            {"top_k": 0, "seed": number},
            {"return_log_probs": True},
        )
        form = draw.choice(some)
        found.append(("".join(draw.choices("abcdef ", k=5)), {"max_tokens": 14, **draw.choice(kinds), **form}))
    return found


@pytest.mark.parametrize("model", ["decoder", "summarizer"])
def test_structured_outputs_are_the_same_alone_and_in_a_batch(model: str, request: pytest.FixtureRequest) -> None:
    generator, requests = request.getfixturevalue(model), asks(1, 60)
    alone = [generator.generate(text, **fields) for text, fields in requests]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda ask: generator.generate(ask[0], **ask[1]), requests)) == alone
    for (_, fields), piece in zip(requests, alone, strict=True):
        form = {name: fields[name] for name in ("regex", "choices") if name in fields}
        if form and piece.finish_reason == "stop":
            random_grammars.check(form, piece.text)


def test_a_stream_has_the_pieces_of_the_answer(decoder: TextGenerator) -> None:
    fields: dict[str, Any] = {"regex": "(the|a) (cat|dog) sat.", "max_tokens": 30}
    pieces = list(decoder.stream("cat", **fields))
    assert len(pieces) > 5 and join_texts(pieces) == (decoder.generate("cat", **fields),)


def test_an_answer_that_is_cut_off_has_the_reason_length(decoder: TextGenerator) -> None:
    piece = decoder.generate("cat", choices=["the cat sat."], max_tokens=5)
    assert (piece.text, piece.finish_reason) == ("the c", "length")


def test_defaults_that_could_break_a_structured_output_are_ignored(summarizer: TextGenerator) -> None:
    piece = summarizer.generate("the dog", choices=["aaa", "bb"])
    assert piece.text in ("aaa", "bb") and piece.finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("min_tokens", {"regex": "a", "min_tokens": 2}),
        ("no_repeat_ngram_size", {"regex": "a", "no_repeat_ngram_size": 2}),
        ("stop_words", {"regex": "a", "stop_words": ["b"]}),
        ("choices", {"regex": "a", "choices": ["b"]}),
        ("regex", {"regex": "a" * 2**17}),
        ("choices", {"choices": ["a" * 4096 + str(number) for number in range(20)]}),
        ("json_schema", {"json_schema": 3}),
        ("json_schema", {"json_schema": {"enum": [float]}}),
        ("json_schema", {"json_schema": {"enum": [3]}}),  # the toys have no figures
    ],
)
def test_settings_that_conflict_with_a_structured_output_are_refused(
    field: str, fields: dict[str, Any], decoder: TextGenerator
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decoder.generate("cat", **{"max_tokens": 9, **fields})
    assert refusal.value.field == field


def test_structured_outputs_of_documents_in_chunks_are_refused(summarizer: TextGenerator) -> None:
    with pytest.raises(InvalidRequest, match="long is chunk"):
        summarizer.generate("cat", regex="a", long="chunk")


def test_without_llguidance_structured_outputs_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with TextGenerator.open(write_model(tmp_path), slots=4, threads=1) as generator:
        with pytest.raises(InvalidRequest, match="pip install 'llguidance"):
            generator.generate("cat", regex="a")
        assert generator.generate("cat", max_tokens=4).text


def test_matchers_are_freed_with_their_requests(decoder: TextGenerator) -> None:
    def matchers() -> int:
        return sum(isinstance(each, TokenMatcher) for each in gc.get_objects())

    decoder.generate("cat", regex="[a-z]*", max_tokens=2)
    gc.collect()
    before = matchers()
    gc.disable()
    try:
        for beams in (1, 4):
            stream = decoder.stream("cat", regex="[a-z]*", max_tokens=20, num_beams=beams)
            next(stream)
            stream.close()
        wait_until(lambda: not decoder.engine.stats().requests, "the end of the requests")
        del stream
        wait_until(lambda: matchers() == before, "the matchers' end")
    finally:
        gc.enable()


# Hostile forms


def nested(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth


HOSTILE: dict[str, dict[str, Any]] = {
    "no JSON": {"json_schema": '{"type":'},
    "deeper than JSON is read": {"json_schema": nested(1000)},
    "deep": {"json_schema": nested(100)},
    "itself": {"json_schema": '{"$ref":"#"}'},
    "a circle": {"json_schema": '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}'},
    "another machine's": {"json_schema": '{"$ref":"http://127.0.0.1:9/schema.json"}'},
    "a file's": {"json_schema": '{"$ref":"file:///etc/passwd"}'},
    "exponential": {
        "json_schema": {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{at}": {
                    "allOf": [
                        {"anyOf": [{"properties": {f"{side}{at}": {"type": "string"}}} for side in "ab"]},
                        *([{"$ref": f"#/$defs/d{at + 1}"}] if at < 25 else []),
                    ]
                }
                for at in range(26)
            },
        }
    },
    "slow": {"json_schema": {"allOf": [{"type": "string", "pattern": f"a{{{count}}}"} for count in range(100)]}},
    "endless": {"json_schema": {"type": "integer", "multipleOf": 99999989}},
    "never true": {"json_schema": {"type": "string", "minLength": 5, "maxLength": 3}},
    "its own options": {"json_schema": {"x-guidance": {"lenient": True}}},
    "half a character": {"json_schema": '{"const":"\\ud800"}'},
    "not a number": {"json_schema": '{"const":NaN}'},
    "no expression": {"regex": "a(b"},
    "looks ahead": {"regex": "(?=a)b"},
    "refers back": {"regex": r"(a)\1"},
    "nested parentheses": {"regex": "(" * 5000 + "a" + ")" * 5000},
}
UNSUPPORTED = (
    "uniqueItems", "not", "if", "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
    "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "minContains", "minProperties",
)  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = byte_level("gpt2").backend_tokenizer
    return GrammarCompiler(tokenizer, lambda token: token == 0, tokenizer.get_vocab_size(), (0,))


def compile_structure(compiler: GrammarCompiler, form: dict[str, Any]) -> Any:
    if isinstance(form.get("json_schema"), dict):
        form = {"json_schema": json.dumps(form["json_schema"])}
    return compiler.compile(Texts(**form))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_each_time(name: str, compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refusal:
            compile_structure(compiler, HOSTILE[name])
        assert refusal.value.field in HOSTILE[name] and len(str(refusal.value)) < 600


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_a_keyword_that_is_not_enforced_is_refused_by_its_name(keyword: str, compiler: GrammarCompiler) -> None:
    value = {"minProperties": 3, "minContains": 1, "uniqueItems": True, "$dynamicRef": "#a"}.get(keyword, {})
    with pytest.raises(InvalidRequest) as refusal:
        compile_structure(compiler, {"json_schema": {"type": "object", "properties": {"a": {keyword: value}}}})
    assert keyword in str(refusal.value)


def test_json_is_in_one_line_with_at_most_one_space_between_its_parts(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    new_matcher = compiler.compile(Texts(json_schema=json.dumps(schema)))
    assert new_matcher is not None

    def is_taken(text: str) -> bool:
        matcher = new_matcher()
        for token in byte_level().backend_tokenizer.encode(text, add_special_tokens=False).ids:
            if not matcher.allows(token):
                return False
            matcher.take(token)
        return matcher.allows(0)

    value = {"a": [1, {"c": None}, [[]]], "b": "two  spaces\nand a line"}
    for separators in ((",", ":"), (", ", ": "), (" , ", " : ")):
        assert is_taken(json.dumps(value, separators=separators))
    text = json.dumps(value)
    for wrong in (
        json.dumps(value, indent=1),
        text.replace("{", "{\n"),
        text.replace(", ", ",  "),
        text + "\n",
        f" {text}",
    ):
        assert not is_taken(wrong), wrong


def test_the_cache_of_compiled_grammars_is_bounded(compiler: GrammarCompiler) -> None:
    first = compile_structure(compiler, {"regex": "first"})
    assert compile_structure(compiler, {"regex": "first"}) == first
    for number in range(KEPT):
        compiler._keep(("regex", f"other {number}"), first)
    assert len(compiler._compiled) == KEPT and ("regex", "first") not in compiler._compiled


# The process that compiles first


@pytest.fixture
def process() -> Iterator[GrammarProcess]:
    started = GrammarProcess()
    yield started
    if started._process is not None:
        started._process.communicate(timeout=30)


def grammar(regex: str) -> str:
    return str(written(("regex", regex), False))


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found += [int(stat.parent.name)] * (stat.read_text().rpartition(")")[2].split()[1] == str(parent))
    return found


def test_processes_compile_grammars_for_any_thread() -> None:
    endless = written(("json_schema", json.dumps(HOSTILE["endless"]["json_schema"])), False)
    grammars = [
        grammar("a{2,9}"),
        endless,
        grammar("a(b"),
        grammar("é" * 60_000 + "("),
        grammar("[é\U0001f600]" + "b" * 60_000),
    ] * 4
    with ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(lambda each: error_of(each, LIMITS), grammars))
    for place in range(0, len(errors), 5):
        fine, slow, unclosed, long_unclosed, long = errors[place : place + 5]
        assert (fine, slow, long) == ("", TOO_SLOW, "")
        assert "unclosed group" in unclosed and "unclosed group" in long_unclosed


def test_a_grammar_that_ends_its_process_costs_no_other(process: GrammarProcess) -> None:
    assert process.error(grammar("a"), LIMITS) == ""
    first = process._process
    assert first is not None

    def kill_child() -> None:
        wait_until(lambda: children(first.pid), "the grammar's process")
        os.kill(children(first.pid)[0], signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_child)
        endless = written(("json_schema", json.dumps(HOSTILE["endless"]["json_schema"])), False)
        assert "ends the process" in process.error(endless, LIMITS)
        killed.result()
    assert process.error(grammar("b"), LIMITS) == "" and process._process is first


def test_a_process_that_was_killed_is_replaced(process: GrammarProcess) -> None:
    assert process.error(grammar("a"), LIMITS) == ""
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (process._process.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(QueueFull, match="Try again"):
        process.error(grammar("b"), LIMITS)
    killer.join()
    assert process.error(grammar("b"), LIMITS) == ""


def test_a_process_ends_with_the_one_that_uses_it() -> None:
    code = (
        "from hfx.python_backends.generation.grammar_process import GrammarProcess\n"
        "process = GrammarProcess(); process.error('x', {}); print(process._process.pid, flush=True)\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), "its end")


# Tokenizers


@pytest.mark.parametrize("make", [byte_level, unigram, byte_fallback])
def test_the_bytes_of_tokens_are_what_they_add_to_a_text(make: Callable[[], Any]) -> None:
    tokenizer = make().backend_tokenizer
    detokenizer = Detokenizer(tokenizer)
    vocabulary = read_vocabulary(tokenizer, detokenizer.is_special, tokenizer.get_vocab_size())
    assert vocabulary is not None
    draw = random.Random(1)
    usable = [token for token, text in enumerate(vocabulary.tokens) if text]
    begins = [token for token in usable if vocabulary.tokens[token].startswith(b" ") or not vocabulary.loses_space]
    assert len(usable) > 200
    for _ in range(500):
        ids = [draw.choice(begins), *draw.choices(usable, k=draw.randint(0, 12))]
        text = b"".join(vocabulary.tokens[token] for token in ids)[vocabulary.loses_space :]
        with contextlib.suppress(UnicodeDecodeError):  # no form has an answer of half a character
            assert detokenizer.decode(ids) == text.decode()


@pytest.mark.parametrize("make", [word_pieces, word_ends])
def test_a_tokenizer_that_joins_by_rules_has_no_structured_output(make: Callable[[], Any]) -> None:
    tokenizer = make().backend_tokenizer
    compiler = GrammarCompiler(tokenizer, lambda token: token == 0, tokenizer.get_vocab_size(), (0,))
    with pytest.raises(InvalidRequest, match="joins tokens by rules"):
        compiler.compile(Texts(regex="a"))


def test_a_model_without_an_end_token_has_no_structured_output() -> None:
    tokenizer = byte_level("gpt2").backend_tokenizer
    with pytest.raises(InvalidRequest, match="no token that ends"):
        GrammarCompiler(tokenizer, lambda token: token == 0, 400, ()).compile(Texts(regex="a"))
