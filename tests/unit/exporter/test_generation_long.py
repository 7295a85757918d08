"""Long texts in the gate reveal faults beyond the first hundred positions and at the cuts of prompts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.errors import VerificationFailed
from hfx.exporter import families
from hfx.exporter.families.family import Family
from hfx.exporter.generation import engine_folder, prompts
from hfx.exporter.generation.gate import LIMITS, judge
from hfx.exporter.generation.measure import ROWS, Figures, Whole, measure_forced, measure_long, open_rows
from hfx.exporter.generation.prompts import CHUNK, LongReader, Prompt, starts
from hfx.exporter.generation.reference import Reference, Work, make_reference
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.graph.blocks import Attention, DistanceBias, Net, Parameter, Rotary, Stack
from hfx.exporter.options import ExportOptions
from hfx.exporter.parity_texts import bundled_texts
from hfx.exporter.pipeline import make_plan
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.runtime import weight_levels
from hfx.exporter.source import open_checkpoint
from hfx.native import library
from hfx.python_backends.engine.plan import Span
from hfx.python_backends.engine.request import Settings
from hfx.python_backends.engine.runners import DecoderRunner
from hfx.python_backends.engine.sessions import SessionSettings
from tests.rigs.checkpoints import generator_checkpoints, tiny_generators
from tests.rigs.checkpoints.published import VNNI, export_checkpoint
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = pytest.mark.slow
LENGTH = 600  # positions: two chunks, and a part of a third
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": LENGTH},
    "llama": {"max_position_embeddings": LENGTH},
    "mistral": {"max_position_embeddings": LENGTH, "sliding_window": 96},
    "bart": {"max_position_embeddings": LENGTH},
    "t5": {"n_positions": LENGTH, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
}
LOUD = {
    "bart": ("embed_positions", "encoder_attn.v_proj", "encoder_attn.out_proj"),
    "llama": ("q_proj", "k_proj"),
    "mistral": ("q_proj", "k_proj"),
    "t5": ("EncDecAttention.o", "encoder.block.0.layer.0.SelfAttention.o"),
}
RUNTIMES = [
    ("fp32", "onnxruntime"), ("int8", "onnxruntime"), *([("int8", "native")] if HAS_NATIVE else []),
]  # fmt: skip
EFFORT = prompts.Effort(texts=3, tokens=24, beam_texts=0, beam_tokens=0, prompt_tokens=40, long_texts=0, alone=0)
WORK = Work(EFFORT, greedy=Settings(max_tokens=24), beams=Settings())
WHOLE = Whole(4, 1.0, 0.0, 0, 0)  # other figures, which are not looked at
Change = Callable[[Net], Net]


@dataclass(frozen=True)
class Checked:
    """A checkpoint, and torch's results for it."""

    plan: Any
    reference: Reference


def save(folder: Path, family: str) -> None:
    """Save a checkpoint in which the positions of tokens matter, as in trained ones."""
    model = tiny_generators.build(family, eos_token_id=0, pad_token_id=0, bos_token_id=None, **CONFIGS[family])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in LOUD.get(family, ())):
                parameter.mul_(4)
    generator_checkpoints.save_whole(folder, model, generator_checkpoints.tokenizer(), {})


@cache
def checked(family: str, folder: Path) -> Checked:
    save(folder / family, family)
    plan: Any = make_plan(open_checkpoint(str(folder / family)), ExportOptions(repository=folder))
    tokenizer = generator_checkpoints.tokenizer()
    generator = TorchGenerator.open(plan, tokenizer)
    read = [Prompt(text, tuple(tokenizer(text)["input_ids"])) for text in ("one", "two cats", "and so on")]
    start, vocabulary = plan.settings.decoder_start_token_ids, generator.model.config.vocab_size
    heads = generator.model.config.num_attention_heads
    sizes = (LENGTH, LENGTH if start else 0)
    long = LongReader(tokenizer, "", start, vocabulary, heads, *sizes).read(bundled_texts())
    return Checked(plan, make_reference(generator, read, WORK, long))


@pytest.fixture(scope="module")
def of_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checked]:
    folder = tmp_path_factory.mktemp("long")
    return lambda family: checked(family, folder)


def figures(side: Checked, folder: Path, precision: Any, runtime: Any) -> Figures:
    of_native = library() if runtime == "native" else None
    checkpoint, formats = side.plan.checkpoint, FORMATS[precision]
    spec = engine_folder.write_engine_folder(checkpoint, folder, formats, weight_levels(), LENGTH, of_native)
    with closing(open_rows(spec, ROWS, SessionSettings(threads=1, runtime=runtime))) as runner:
        forced = measure_forced(runner, side.reference, side.plan.settings.decoder_start_token_ids)
        long = measure_long(runner, spec, side.reference)
    # With random weights, the likeliest of many tokens is of no interest.
    return Figures(replace(forced, agreement=1.0), WHOLE, None, 1, 0.0, long)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """A function that changes all nets before they are written."""

    def use(change: Change) -> None:
        def find(checkpoint: Any) -> Family:
            family = families.find_family(checkpoint)
            return replace(family, read=lambda *given: change(family.read(*given)))

        monkeypatch.setattr(engine_folder, "find_family", find)

    return use


@pytest.mark.parametrize(("precision", "runtime"), RUNTIMES)
@pytest.mark.parametrize("family", CONFIGS)
def test_correct_graphs_pass_the_comparison_of_long_texts(
    family: str, precision: Any, runtime: str, of_family: Callable[[str], Checked], tmp_path: Path
) -> None:
    found = figures(of_family(family), tmp_path, precision, runtime)
    judge("it", found, LIMITS[precision])
    assert found.long is not None
    assert found.long.longest == LENGTH if family in ("bart", "t5") else found.long.longest > LENGTH - 10
    assert found.long.positions > 300
    assert found.long.agreement > (0.99 if precision == "fp32" else 0.8)


def without_rows(table: Parameter, first: int) -> Parameter:
    """Return `table` with zeros from row `first` on."""

    def take(start: int, stop: int) -> Any:
        rows = table.take(start, stop).copy()
        rows[max(first - start, 0) :] = 0
        return rows

    return replace(table, take=take)


def zeroed(stack: Stack) -> Stack:
    """Remove the positions from the 96th on."""
    if stack.positions is not None:
        return replace(stack, positions=without_rows(stack.positions, 96))
    return replace(stack, layers=tuple(replace(layer, attention=unturned(layer.attention)) for layer in stack.layers))


def unturned(attention: Attention) -> Attention:
    assert attention.rotary is not None
    tables = (without_rows(each, 96) for each in (attention.rotary.cos, attention.rotary.sin))
    return replace(attention, rotary=Rotary(*tables))


def without_windows(stack: Stack) -> Stack:
    layers = (replace(layer, attention=replace(layer.attention, window=None)) for layer in stack.layers)
    return replace(stack, layers=tuple(layers))


def other_distances(stack: Stack) -> Stack:
    """Use the bias of distance zero beyond 64 positions."""
    assert stack.bias is not None
    table, reach = stack.bias.table.read().copy(), stack.bias.reach
    none = reach if len(table) > reach + 1 else 0
    table[np.abs(np.arange(len(table)) - none) > 64] = table[none]
    return replace(stack, bias=DistanceBias(replace(stack.bias.table, take=lambda a, b: table[a:b]), reach))


def in_decoder(change: Callable[[Stack], Stack]) -> Change:
    return lambda net: replace(net, decoder=change(net.decoder))


def in_encoder(change: Callable[[Stack], Stack]) -> Change:
    def of_net(net: Net) -> Net:
        assert net.encoder is not None
        return replace(net, encoder=change(net.encoder))

    return of_net


WRONG = {
    "gpt2, positions": ("gpt2", in_decoder(zeroed)),
    "llama, positions": ("llama", in_decoder(zeroed)),
    "mistral, windows": ("mistral", in_decoder(without_windows)),
    "bart, positions of the decoder": ("bart", in_decoder(zeroed)),
    "bart, positions of the encoder": ("bart", in_encoder(zeroed)),
    "t5, distances of the decoder": ("t5", in_decoder(other_distances)),
    "t5, distances of the encoder": ("t5", in_encoder(other_distances)),
}


@pytest.mark.parametrize(("precision", "runtime"), RUNTIMES)
@pytest.mark.parametrize("name", WRONG)
def test_a_graph_that_is_wrong_at_long_texts_alone_is_refused(
    name: str, precision: Any, runtime: str, of_family: Any, changed: Any, tmp_path: Path
) -> None:
    family, change = WRONG[name]
    if family == "t5" and precision == "int8" and not VNNI:
        pytest.skip("without VNNI weights are coarser, and what they lose of a random T5 hides the distances")
    changed(change)
    found = figures(of_family(family), tmp_path, precision, runtime)
    with pytest.raises(VerificationFailed, match="of texts up to"):
        judge("it", found, LIMITS[precision])
    judge("it", replace(found, long=None), LIMITS[precision])  # short texts don't tell


@pytest.fixture
def shifted_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place parts of prompts one position too late."""
    run = DecoderRunner.run

    def shifted(self: Any, spans: Any, logits: bool) -> Any:
        return run(self, [Span(s.tokens, s.start + 1, s.rows) if s.start else s for s in spans], logits)

    monkeypatch.setattr(DecoderRunner, "run", shifted)


@pytest.mark.parametrize(("precision", "runtime"), RUNTIMES)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.usefixtures("shifted_chunks")
def test_chunks_that_are_off_by_one_are_refused(
    family: str, precision: Any, runtime: str, of_family: Any, tmp_path: Path
) -> None:
    found = figures(of_family(family), tmp_path, precision, runtime)
    with pytest.raises(VerificationFailed, match="of texts up to"):
        judge("it", found, LIMITS[precision])
    judge("it", replace(found, long=None), LIMITS[precision])


def test_nothing_is_published_of_a_model_that_is_wrong_at_long_texts(
    changed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As few tokens are generated as for the largest checkpoints."""
    monkeypatch.setattr(prompts, "EFFORTS", prompts.EFFORTS[-1:])
    save(tmp_path / "c", "gpt2")
    changed(in_decoder(zeroed))
    with pytest.raises(VerificationFailed, match="591 tokens"):
        export_checkpoint(tmp_path / "c", tmp_path / "r", name="m")
    assert not (tmp_path / "r" / "m").exists()


# Which texts are read


def reader(**changed: Any) -> LongReader:
    values = {"start": (), "vocab_size": 29, "heads": 4, "max_length": LENGTH, "max_source": 0, **changed}
    return LongReader(generator_checkpoints.tokenizer(), "", **values)


def test_long_texts_end_at_the_limit_behind_a_chunk_and_in_between() -> None:
    longest, short, between = reader().read(["one cat and two dogs. "] * 3)
    assert [len(text.inputs) for text in (longest, short, between)] == [599, 265, 398]
    assert [text.longest for text in (longest, short)] == [591, CHUNK + 1]
    assert longest.inputs != short.inputs[:20]
    assert {0, 95, 96, 97, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, LENGTH - 2} <= set(longest.places)


def test_an_encoder_reads_its_longest_source_and_a_decoder_its_last_position() -> None:
    texts = reader(start=(5,), max_length=50, max_source=LENGTH).read(["one cat", "two dogs"])
    assert [(len(text.source), len(text.inputs)) for text in texts] == [(600, 49), (265, 49), (398, 49)]
    assert texts[0].inputs[0] == 5
    assert texts[0].places[-1] == 48


@pytest.mark.parametrize(("length", "texts"), [(1, 0), (2, 0), (3, 1), (10, 1), (40, 1), (CHUNK + 20, 3)])
def test_texts_of_a_short_model_fit_its_limit(length: int, texts: int) -> None:
    found = reader(max_length=length).read(["one cat and two dogs"])
    assert len(found) == texts
    for text in found:
        assert len(text.inputs) <= length - 1
        assert text.places[-1] == len(text.inputs) - 1


def test_the_longest_text_is_bounded_by_the_memory_of_attention() -> None:
    assert len(reader(max_length=32_768, heads=32).read(["one cat and two dogs"])[0].inputs) == 2048


def test_compared_positions_are_few_and_end_at_the_limit() -> None:
    for length in (2, 9, 60, 265, 1023, 4000):
        steps = min(8, length - 1)
        found = starts(length, steps)
        assert len(found) == len(set(found)) <= 16
        assert found[-1] + steps == length
