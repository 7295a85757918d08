"""`python -m bench.pictures`: screenshots of the playground and of a report, from small models and a real load."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import zoo
from tests.rigs.clients import chromium
from tests.rigs.servers.serve_process import serving

IMAGES = Path("docs/images").absolute()
HFX = str(Path(sys.executable).with_name("hfx"))
WIDTH, HEIGHT = 1200, 720
IDLE, PATIENCE = 0.3, 240  # load average, seconds
TEXT = "What a lovely garden!"
MODELS = (("sentiment", "sentiment-distilbert", ()), ("stories", "stories-gpt2", ("--max-drop", "0.06")))


def main() -> None:
    """Export, serve and measure in a folder of its own, and photograph both pages."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, checkpoint, options in MODELS:
            run(
                folder,
                "export",
                str(zoo.checkpoint(checkpoint)),
                "--name",
                name,
                "--quantize",
                "--device",
                "cpu",
                *options,
            )
        with serving(folder / "model_repository") as server:
            wait_for_an_idle_machine()
            load = ("--concurrency", "1:8:2x", "--duration", "3s", "--slo", "latency<50ms")
            run(folder, "perf", "run", "sentiment", "--url", server.ready["grpc_url"], *load, "--output", "load.json")
            run(folder, "perf", "report", "load.json", "--output", "report.html")
            with chromium.tab(folder / "profile") as tab:
                playground(tab, server.http_url)
                show(tab, (folder / "report.html").as_uri(), IMAGES / "report.png")


def wait_for_an_idle_machine() -> None:
    """The exports have kept it busy, which a report says; at most for so long as a load average takes to fall."""
    for _ in range(PATIENCE):
        if os.getloadavg()[0] < IDLE:
            return
        time.sleep(1)


def playground(tab: chromium.Page, url: str) -> None:
    """The page of the classifier with an answer."""
    tab.resize(WIDTH, HEIGHT)
    tab.command("Page.navigate", url=f"{url}/#model=sentiment")
    tab.wait_for("document.querySelector('#name')?.textContent === 'sentiment'")
    tab.value("document.querySelector('#inputs textarea').select()")
    tab.type(TEXT)
    for _ in range(5):  # the first requests take longer
        tab.press("Enter", chromium.CONTROL)
        tab.wait_for("document.body.dataset.state === 'idle' && !document.querySelector('#time').hidden")
    save(tab, IMAGES / "playground.png")


def show(tab: chromium.Page, url: str, picture: Path) -> None:
    """A page of a file."""
    tab.command("Page.navigate", url=url)
    tab.wait_for("document.readyState === 'complete'")
    save(tab, picture)


def save(tab: chromium.Page, picture: Path) -> None:
    """What the window shows, as PNG."""
    picture.write_bytes(base64.b64decode(tab.command("Page.captureScreenshot")["data"]))


def run(folder: Path, *words: str) -> None:
    """`hfx WORDS` in `folder`."""
    subprocess.run([HFX, *words], cwd=folder, check=True)


if __name__ == "__main__":
    main()
