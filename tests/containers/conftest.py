"""Container engine, images and models of the container tests; each is made once and reused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.containers import images
from tests.containers.containers import typed
from tests.containers.images import run
from tests.rigs.checkpoints import reciting_generator
from tests.rigs.checkpoints.published import export_checkpoint, export_zoo, few_texts

NO_ENGINE = 3  # exit code of engine.sh


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """A docker engine that answers; the tests are skipped if there is none."""
    done = subprocess.run([Path(__file__).parent / "engine.sh", "up"], capture_output=True, text=True, check=False)
    if done.returncode == NO_ENGINE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def image(engine: None) -> str:
    """The image of hfx for this checkout."""
    return images.server()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model_repository`: an encoder, and a generator with a known long text."""
    place = tmp_path_factory.mktemp("checkout")
    repository = place / "model_repository"
    repository.mkdir()
    export_zoo("sentiment-distilbert", repository, "sentiment", "int8")
    checkpoint = reciting_generator.save(tmp_path_factory.mktemp("checkpoint") / "stories")
    with few_texts():
        export_checkpoint(checkpoint, repository, name="stories", slots=8)
    run("chmod", "-R", "go+rX", place)
    return place


@pytest.fixture(scope="session")
def both(image: str, folder: Path) -> Path:
    """`folder` with `both/`, written by `hfx deploy docker` for its models, and the built image."""
    typed("hfx deploy docker sentiment stories --name both --output both", folder)
    typed("docker build --quiet --tag both:26.07-cpu both", folder)
    return folder
