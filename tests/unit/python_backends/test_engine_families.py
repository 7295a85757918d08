"""The engine on exported graphs: log-probabilities of small models, and a T5 without a length limit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import open_checkpoint
from hfx.python_backends.engine.generation_settings import Texts
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.engine.request import Request, Settings
from tests import zoo
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import random_grammars
from tests.rigs.engine.watched_engine import open_engine

pytestmark = pytest.mark.slow

VOCABULARY = 160
LIMITS = Limits(chunk=40, prefill=96, encode=128)
LENGTH = 96  # of sources and answers: all memory that is not used is poisoned after each step
FAMILIES = {
    "gpt2": {"n_positions": 256, "bos_token_id": 0, "eos_token_id": 1},
    "qwen2": {"max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1},
    "bart": {"max_position_embeddings": LENGTH},
    "t5-gated": {"num_layers": 2, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
}


@cache
def model(family: str) -> Any:
    """Return a model of random weights, wide enough that tokens vary."""
    import torch

    torch.manual_seed(3)
    made = tiny_generators.build(family, vocab_size=VOCABULARY, **FAMILIES[family])
    with torch.no_grad():
        for weights in made.parameters():
            if weights.ndim == 2:
                weights.normal_(0, 0.35)
    made.generation_config.forced_eos_token_id = None
    return made.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function of the family that returns its engine folder."""

    @cache
    def write(family: str) -> Path:
        root = tmp_path_factory.mktemp(family)
        checkpoint = tiny_generators.save(root / "checkpoint", model(family))
        length = LENGTH if family == "t5-gated" else None  # the others have tables of positions
        write_engine_folder(checkpoint, root / "engine", FORMATS["fp32"], 63, length)
        return root / "engine"

    return write


def test_a_t5_by_its_old_name_reads_more_than_it_was_trained_with(tmp_path: Path) -> None:
    import torch

    asked, longest = model("t5-gated"), 100
    tiny_generators.save(tmp_path / "checkpoint", asked)
    file = tmp_path / "checkpoint" / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"architectures": ["T5WithLMHeadModel"], "n_positions": 16})
    )
    checkpoint = tiny_generators.checkpoint(file.parent)
    facts = write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp32"], 63, longest)
    assert (facts.max_length, facts.max_source) == (longest, longest)
    prompt = tuple((7 * at + 3) % VOCABULARY for at in range(longest))
    request = Request(prompt, Settings(max_tokens=90, min_tokens=90, eos_ids=(1,), decoder_prompt=(0,)))
    with open_engine(tmp_path / "engine", slots=2, limits=LIMITS) as engine:
        (answer,) = engine.submit(request).result(120)
    ids = torch.tensor([[0, *answer.ids]])
    with torch.no_grad():
        logits = asked(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0, :-1]
    logits[:, 1] = -torch.inf  # min_tokens
    chosen = logits[torch.arange(90), ids[0, 1:]]
    assert (logits.max(-1).values - chosen).max() < 1e-3  # a tie may go either way


def test_a_llama_may_be_given_fewer_positions_and_uses_the_last(tmp_path: Path) -> None:
    import torch

    asked, longest = tiny_generators.build("llama"), 40
    checkpoint = tiny_generators.save(tmp_path / "checkpoint", asked)
    facts = write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp32"], 63, longest)
    assert (facts.max_length, facts.max_source, facts.heads, facts.kv_heads) == (longest, 0, 6, 3)
    prompt = tuple(range(3, 13))
    request = Request(prompt, Settings(max_tokens=30, min_tokens=30, eos_ids=(1,)))
    with open_engine(tmp_path / "engine", slots=2, limits=LIMITS) as engine:
        (answer,) = engine.submit(request).result(120)
    expected = asked.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 10), do_sample=False, max_new_tokens=30, min_new_tokens=30,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    assert list(answer.ids) == expected[0, 10:].tolist()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_structured_outputs_equal_transformers_with_the_same_mask(family: str, beams: int, folder: Any) -> None:
    import torch

    asked, eos = model(family), (1,)
    start = () if family in tiny_generators.DECODERS else (asked.config.decoder_start_token_id,)
    requests, expected = [], []
    for seed in range(6):
        form = Texts(**random_grammars.random_structure(3000 + seed))
        settings = Settings(
            max_tokens=30, num_beams=beams, eos_ids=eos, decoder_prompt=start,
            new_matcher=random_grammars.compiler(eos, VOCABULARY).compile(form),
        )  # fmt: skip
        requests.append(Request(tuple((seed + 7 * at + 3) % VOCABULARY for at in range(8)), settings))
        allowed, skipped = random_grammars.new_mask(form, eos, VOCABULARY), len(start) or 8
        options = {"decoder_input_ids": torch.tensor([start])} if start else {}
        output = asked.generate(
            torch.tensor([requests[-1].prompt]), attention_mask=torch.ones(1, 8), do_sample=False, max_new_tokens=30,
            num_beams=beams, eos_token_id=1, pad_token_id=0, forced_bos_token_id=None, **options,
            prefix_allowed_tokens_fn=lambda _, ids, allowed=allowed, skipped=skipped: allowed(ids.tolist()[skipped:]),
        )  # fmt: skip
        expected.append(output[0, skipped:].tolist())
    with open_engine(folder(family), slots=2 * beams, limits=LIMITS) as engine:
        answers = [job.result(120)[0] for job in [engine.submit(each) for each in requests]]
    assert [list(answer.ids) for answer in answers] == expected
    assert sum(answer.finish_reason == "stop" for answer in answers) > 1


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 5, "num_return_sequences": 2},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_come_from_unprocessed_logits_also_for_forced_tokens(family: str, way: str, folder: Any) -> None:
    import torch

    prompt, start = ((5,), ()) if family in tiny_generators.DECODERS else ((5, 9, 30), (2,))
    options = {"max_tokens": 7, "decoder_prompt": start, "forced_bos_id": 13, "forced_eos_id": 1}
    options |= {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, **WAYS[way]}
    with open_engine(folder(family), slots=8, limits=LIMITS) as engine:
        answers = engine.submit(Request(prompt, Settings(**options, log_probs=True))).result(60)
        without = engine.submit(Request(prompt, Settings(**options))).result(60)
    assert [each.ids for each in answers] == [each.ids for each in without]
    for answer in answers:
        assert (len(answer.ids), answer.ids[0], answer.ids[-1]) == (7, 13, 1)
        ids = torch.tensor([[*(start or prompt), *answer.ids]])
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": ids} if start else {"input_ids": ids}
        with torch.no_grad():
            expected = model(family)(**inputs).logits[0, -8:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert answer.log_probs == pytest.approx(expected.tolist(), abs=1e-3)


TRAINED = ("stories-gpt2", "summaries-bart", "summaries-t5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function of the name that returns a trained checkpoint's torch model and its fp32 engine folder."""

    @cache
    def write(name: str) -> tuple[Any, Path]:
        import transformers

        source = open_checkpoint(str(zoo.checkpoint(name)))
        folder = tmp_path_factory.mktemp(name) / "engine"
        write_engine_folder(source, folder, FORMATS["fp32"], levels=63)
        auto: Any = transformers.AutoModelForCausalLM if "gpt2" in name else transformers.AutoModelForSeq2SeqLM
        return auto.from_pretrained(source.folder).eval(), folder

    return write


@pytest.mark.parametrize("name", TRAINED)
def test_log_probs_and_alternatives_of_trained_models_are_those_of_transformers(name: str, trained: Any) -> None:
    import torch

    torch_model, folder = trained(name)
    prompt = tuple(range(20, 32))
    start = () if "gpt2" in name else (torch_model.generation_config.decoder_start_token_id,)
    forced = getattr(torch_model.generation_config, "forced_bos_token_id", None)
    options: dict[str, Any] = {"max_tokens": 10, "min_tokens": 10, "eos_ids": (1,), "decoder_prompt": start}
    options |= {"log_probs": True, "top_log_probs": 5, "forced_bos_id": forced}
    with open_engine(folder, slots=4, limits=LIMITS) as engine:
        (greedy,) = engine.submit(Request(prompt, Settings(**options))).result(60)
        sampling = Settings(**options, do_sample=True, temperature=1.3, top_k=20, seed=3)
        (sampled,) = engine.submit(Request(prompt, sampling)).result(60)
    with torch.no_grad():
        expected = torch_model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), num_beams=1, do_sample=False,
            max_new_tokens=10, min_new_tokens=10, eos_token_id=1, no_repeat_ngram_size=0, forced_eos_token_id=None,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    assert expected.sequences[0, -10:].tolist() == list(greedy.ids)
    scores = torch_model.compute_transition_scores(expected.sequences, expected.logits, normalize_logits=True)
    assert greedy.log_probs == pytest.approx(scores[0].tolist(), abs=1e-4)
    for answer in (greedy, sampled):
        ids = torch.tensor([[*(start or prompt), *answer.ids]])
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": ids} if start else {"input_ids": ids}
        with torch.no_grad():
            rows = torch_model(**inputs).logits[0, -11:-1].log_softmax(-1)
        assert answer.log_probs == pytest.approx(rows.gather(1, ids[0, -10:, None])[:, 0].tolist(), abs=1e-4)
        best = rows.topk(5)
        for top, values, row in zip(answer.top, best.values, rows, strict=True):
            assert [log_prob for _, log_prob in top] == pytest.approx(values.tolist(), abs=1e-4)
            assert [log_prob for _, log_prob in top] == pytest.approx([row[i].item() for i, _ in top], abs=1e-4)
