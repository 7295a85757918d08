"""`hfx demo`: its training texts, and a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.demo import checkpoints

RUN = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]


def test_texts_are_the_same_on_every_run_and_labels_are_even() -> None:
    reviews = checkpoints.reviews(1000, seed=0)
    assert reviews == checkpoints.reviews(1000, seed=0) != checkpoints.reviews(1000, seed=1)
    assert 400 < sum(label == "positive" for _, label in reviews) < 600
    assert len(set(checkpoints.stories(100, seed=0))) == 100


def test_a_folder_with_content_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.full
@pytest.mark.triton
def test_the_demo_trains_exports_serves_and_asks(tmp_path: Path) -> None:
    kept = tmp_path / "demo"
    done = subprocess.run([*RUN, "demo", "--keep", str(kept), "--json"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["reviews"]["right"] > 0.9 * figures["reviews"]["calls"]
    assert figures["stories"]["output_tokens"] > 10
    assert {path.name for path in kept.iterdir()} == {
        "reviews-roberta", "stories-gpt2", "heldout.csv", "model_repository",
    }  # fmt: skip
