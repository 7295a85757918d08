"""An engine on the CUDA provider launches captured graphs in service, and allocates nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.machine.cuda_host import needs_cuda_host, run

pytestmark = needs_cuda_host
ROUNDS, LENGTHS = 4, (7, 8, 9, 30)


@pytest.mark.parametrize(("name", "beams"), [("gpt2", 1), ("gpt2", 4), ("llama", 1), ("t5-gated", 1), ("bart", 4)])
def test_rounds_of_known_shapes_only_launch_captured_graphs(tmp_path: Path, cuda: Path, name: str, beams: int) -> None:
    checkpoint = tiny_generators.save(tmp_path / "checkpoint", tiny_generators.build(name))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp16"], 127)
    made = run(cuda, "tests.cuda_host.engine_runs", tmp_path / "engine", beams, ROUNDS, *LENGTHS)
    stats, known = made["stats"], [counts for counts in made["rounds"] if not counts.get("begin to capture")]
    assert not stats["capture_refusal"]
    assert stats["steps_captured"] == stats["steps"]
    assert stats["prompts_captured"] == sum(runs for *_, runs in stats["prompt_runs"])
    assert known  # which requests share a run, and so the shapes, depends on when they arrive
    for counts in known:
        assert counts.keys() <= {"launch a captured graph", "copy to the host", "copy on the device"}
