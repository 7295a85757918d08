"""Translators answer in the languages of a request, token by token as transformers' generate does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.exporter.generation.languages import read_languages
from hfx.exporter.generation.settings import GenerationSettings
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from hfx.python_backends.errors import InvalidRequest, ModelDamaged
from hfx.python_backends.generation.configuration import resolve_config
from hfx.python_backends.generation.generator import TextGenerator
from tests.rigs.checkpoints.generator_checkpoints import save_whole, write_version
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.tiny_translators import END, LONGEST, MARIAN_CODES, TRANSLATORS, save, token_of

pytestmark = pytest.mark.slow
TEXTS = ("the cat sat on the mat.", "a", "zebras, quickly.")
Checkpoints = Callable[[str], Path]
Generators = Callable[[str], TextGenerator]
# Of a log-probability: both sides add up a few dozen float32 products in other orders.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda name: save(folder / name, name))


@pytest.fixture(scope="module")
def generators(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generators]:
    """A function that returns an opened engine of each translator, without the gate."""
    folder = tmp_path_factory.mktemp("models")
    with ExitStack() as opened:

        @cache
        def generator(name: str) -> TextGenerator:
            version = write_version(checkpoint(name), folder / name)
            return opened.enter_context(TextGenerator.open(version))

        yield generator


def source_ids(name: str, text: str, code: str | None) -> list[int]:
    """Return transformers' ids of a text in the language `code`."""
    tokenizer = TRANSLATORS[name].tokenizer()
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = code or tokenizer.src_lang
        return list(tokenizer(text)["input_ids"])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [token_of(tokenizer, code or "en"), *ids, END] if name == "m2m" else [*ids, END]


@cache
def loaded(folder: Path) -> Any:
    import transformers

    auto: Any = transformers.AutoModelForSeq2SeqLM
    return auto.from_pretrained(folder).eval()


def expected(folder: Path, name: str, text: str, pair: tuple[str, str] | None, **options: Any) -> tuple[list[int], Any]:
    """Return the new ids of transformers, including the first ones, and the log-probability of each."""
    import torch

    model = loaded(folder)
    tokenizer = TRANSLATORS[name].tokenizer()
    ids = torch.tensor([source_ids(name, text, pair and pair[0])])
    if pair:
        options[TRANSLATORS[name].target_by] = token_of(tokenizer, pair[1])
    elif name == "nllb":  # whose default is in its tokenizer_config.json
        options["forced_bos_token_id"] = token_of(tokenizer, "fra_Latn")
    with torch.no_grad():
        row = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0]
        logits = model(input_ids=ids, decoder_input_ids=row[None, :-1]).logits[0]
    return row[1:].tolist(), logits.log_softmax(-1)[range(len(row) - 1), row[1:]]


def assert_same(generator: TextGenerator, folder: Path, name: str, text: str, pair: Any, **options: Any) -> None:
    fields = {"source_lang": pair[0], "target_lang": pair[1]} if pair else {}
    ids, log_probs = expected(folder, name, text, pair, **options)
    found = generator.generate(text, **fields, **options, return_log_probs=True)
    assert found.output_tokens == len(ids)
    assert found.text == load_tokenizer(open_checkpoint(str(folder))).decode(ids, skip_special_tokens=True)
    if "num_beams" not in options:
        assert found.log_probs is not None
        assert found.log_probs == pytest.approx(log_probs.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "length_penalty": 2.0}], ids=str)
@pytest.mark.parametrize("name", TRANSLATORS)
def test_every_pair_is_translated_as_by_transformers(
    generators: Generators, checkpoint: Checkpoints, name: str, options: dict[str, Any]
) -> None:
    prefixes = ("", *(f"{code} " for code in MARIAN_CODES)) if name == "marian" else ("",)  # it reads its target there
    # Every text without languages, and every pair with one of the texts in turn.
    asked = [*((None, text) for text in TEXTS), *zip(TRANSLATORS[name].pairs, cycle(TEXTS), strict=False)]
    for (pair, text), prefix in product(asked, prefixes):
        assert_same(generators(name), checkpoint(name), name, prefix + text, pair, **options)


@pytest.mark.parametrize("name", [name for name in TRANSLATORS if name != "marian"])
def test_a_text_has_the_tokens_of_its_language_however_long_it_is(generators: Generators, name: str) -> None:
    configuration, prompts = generators(name).configuration, generators(name)._prompts
    for source, _ in TRANSLATORS[name].pairs:
        choices = resolve_config({"source_lang": source}, configuration)
        for text in TEXTS:
            assert list(prompts.encode(text, choices).prompt) == source_ids(name, text, source)
        ids, short = prompts.encode("abc " * 99, choices).prompt, prompts.encode("abc", choices).prompt
        assert len(ids) == LONGEST
        assert (ids[0], ids[-1]) == (short[0], short[-1])


@pytest.mark.parametrize("name", [name for name in TRANSLATORS if name != "marian"])
def test_a_text_without_special_tokens_has_no_language(generators: Generators, name: str) -> None:
    configuration, prompts = generators(name).configuration, generators(name)._prompts
    ids = prompts.encode(TEXTS[0], resolve_config({"add_special_tokens": False}, configuration)).prompt
    assert list(ids) == TRANSLATORS[name].tokenizer()(TEXTS[0], add_special_tokens=False)["input_ids"]
    with pytest.raises(InvalidRequest, match="add_special_tokens"):
        resolve_config({"add_special_tokens": False, "source_lang": TRANSLATORS[name].pairs[0][0]}, configuration)


def test_texts_of_several_languages_run_together(generators: Generators) -> None:
    pairs = TRANSLATORS["mbart50"].pairs
    streams = [generators("mbart50").stream(TEXTS[0], source_lang=a, target_lang=b) for a, b in pairs]
    together = ["".join(piece.text for piece in stream) for stream in streams]
    assert together == [
        generators("mbart50").generate(TEXTS[0], source_lang=source, target_lang=target).text
        for source, target in pairs
    ]


def test_every_part_of_a_long_text_has_its_language(generators: Generators) -> None:
    text = " ".join(["the quick brown fox jumps."] * 5)
    fields = {"source_lang": "zh_CN", "target_lang": "fr_XX"}
    whole = generators("mbart").generate(text, long="chunk", overlap=0, **fields)
    assert whole.text != generators("mbart").generate(text, long="chunk", overlap=0).text


# What is refused


@pytest.mark.parametrize("field", ["source_lang", "target_lang"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("nllb", "fra", "fra_Latn"),
        ("nllb", "fr_XX", "192 other languages"),
        ("nllb", "<unk>", "other languages"),
        ("mbart", "fr", "fr_XX"),
        ("m2m", "__fr__", "fr, ast, de, en, zh"),
        ("marian", "fra", "no tokens that choose a language"),
        ("m2m", "x" * 2**20, "code of a language"),
        ("m2m", "", "code of a language"),
        ("m2m", 3, "code of a language"),
        ("m2m", ["fr"], "code of a language"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_language_that_is_none_of_the_model_s_is_refused_by_name(
    generators: Generators, field: str, name: str, value: Any, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field} is ") as caught:
        generators(name).generate("a text", **{field: value})
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


# Files


def test_a_tokenizer_of_transformers_4_has_the_language_of_its_config(tmp_path: Path) -> None:
    """NLLB's tokenizer.json on the hub ends texts with the language; its class begins them with it."""
    folder = save(tmp_path, "old-nllb")
    for file, changes in {
        "config.json": {"transformers_version": "4.57.6"},
        "tokenizer_config.json": {"backend": None, "legacy_behaviour": False, "src_lang": "deu_Latn"},
    }.items():
        values = json.loads((folder / file).read_text()) | changes
        (folder / file).write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    tokenizer = load_tokenizer(open_checkpoint(str(folder)))
    ids = tokenizer("a")["input_ids"]
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1]]) == ["deu_Latn", "</s>"]


def test_languages_without_an_embedding_are_not_offered(tmp_path: Path) -> None:
    """transformers gives every mBART tokenizer the tokens of all of its languages."""
    folder = save(tmp_path, "mbart50")
    found, tokenizer = open_checkpoint(str(folder)), TRANSLATORS["mbart50"].tokenizer()
    cut = token_of(tokenizer, "zh_CN")
    settings = GenerationSettings(
        defaults={}, eos_token_ids=(END,), pad_token_id=1, bos_token_id=None, decoder_start_token_ids=(END,)
    )
    whole, fewer = (
        read_languages(replace(found, config=found.config | {"vocab_size": size}), tokenizer, settings)
        for size in (len(tokenizer), cut)
    )
    assert whole is not None
    assert fewer is not None
    assert fewer.ids == {code: token_id for code, token_id in whole.ids.items() if token_id < cut}
    assert 0 < len(fewer.ids) < len(whole.ids) == 52


def test_a_folder_with_languages_beyond_the_embeddings_is_refused(tmp_path: Path, checkpoint: Any) -> None:
    write_version(checkpoint("m2m"), tmp_path)
    file = tmp_path / "generation.json"
    facts = json.loads(file.read_text())
    facts["languages"]["ids"]["fr"] = 2**70
    file.write_text(json.dumps(facts))
    with pytest.raises(ModelDamaged, match="languages"):
        TextGenerator.open(tmp_path)


# The whole way: export with its gate, and the command line


@pytest.mark.usefixtures("least_texts")
def test_the_command_line_takes_languages(
    checkpoint: Checkpoints,
    generators: Generators,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = export_checkpoint(checkpoint("nllb"), tmp_path, name="nllb")
    figures: Any = manifest.parity["cpu"]
    assert (manifest.task, figures["agreement"], figures["texts"]["same"]) == ("translation", 1.0, 1.0)
    for source, target in TRANSLATORS["nllb"].pairs:
        words = ["infer", "nllb", TEXTS[0], "--local", "--repository", str(tmp_path)]
        assert main([*words, "--source-lang", source, "--target-lang", target]) == 0
        wanted = generators("nllb").generate(TEXTS[0], source_lang=source, target_lang=target).text
        assert capsys.readouterr().out == f"{wanted}\n"


@pytest.mark.usefixtures("least_texts")
def test_a_translator_that_writes_pads_among_letters_is_published(tmp_path: Path) -> None:
    """M2M100 gives a pad no position, but counts it during generation."""
    import torch

    model, tokenizer = loaded(save(tmp_path / "letters", "m2m")), TRANSLATORS["m2m"].tokenizer()
    with torch.no_grad():
        model.lm_head.weight[tokenizer.pad_token_id] = 1.1 * model.lm_head.weight[5]  # which is written most
    folder = save_whole(tmp_path / "pads", model, tokenizer, {"max_new_tokens": 12, "no_repeat_ngram_size": 2})
    manifest = export_checkpoint(folder, tmp_path, name="m")
    figures: Any = manifest.parity["cpu"]
    assert (figures["agreement"], figures["texts"]["same"]) == (1.0, 1.0)
    written = []
    with TextGenerator.open(tmp_path / "m_stream" / "1") as generator:
        for text in (*TEXTS, "<pad> the <pad> cat"):
            ids, _ = expected(folder, "m2m", text, None)
            assert generator.generate(text).text == tokenizer.decode(ids, skip_special_tokens=True)
            written += [tokenizer.pad_token_id in ids[:-1]]
    assert sum(written) > 1


def test_languages_that_the_file_can_not_have_are_named() -> None:
    """generation.json is read strictly."""
    from tests.rigs.engine.generation_models import configuration

    languages = {"ids": {"fr": 3}, "source_index": 0, "target": "forced_bos_token_id"}
    assert configuration(max_source=9, languages=languages).languages
    for change in ({"ids": {"fr": -1}}, {"ids": []}, {"source_index": 1}, {"source_index": False}, {"target": "x"}):
        with pytest.raises(InvalidRequest, match=f"languages.{next(iter(change))}"):
            configuration(max_source=9, languages=languages | change)
    with pytest.raises(InvalidRequest, match="languages"):
        configuration(max_source=9, languages={"ids": {}})
    with pytest.raises(InvalidRequest, match="null where kind is decoder"):
        configuration(languages=languages)
