"""`python -m bench.terminal`: docs/images/terminal.svg, a real run of the README's four commands on a small model."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests import zoo

PICTURE = Path("docs/images/terminal.svg").absolute()
CHECKPOINT, WIDTH = "sentiment-distilbert", 84
HFX = str(Path(sys.executable).with_name("hfx"))
ASKED = (
    ("infer", "sentiment", "What a lovely garden!"),
    ("perf", "run", "sentiment", "--concurrency", "1:16:2x"),
)
# Progress, and times and other work of the machine that draws the picture.
LEFT_OUT = re.compile(
    r"\[\d+/\d+\] |loaded |Starting | +\d+ texts? of \d+ tokens: | +other processes kept |.* callers? …$|Warning: "
)
CUT = re.compile(r"Server: .*\n(?=\w+ holds )", re.DOTALL)  # two of the tables of a load
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # of another site; a viewer has fonts of its own


def main() -> None:
    """Run the commands in a folder of their own, and draw what they print."""
    console = Console(record=True, width=WIDTH, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(zoo.checkpoint(CHECKPOINT), Path(folder) / CHECKPOINT)
        show(console, ("export", f"./{CHECKPOINT}", "--name", "sentiment", "--quantize"), folder)
        prompt(console, ("serve",))
        server = subprocess.Popen(
            [HFX, "serve"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert server.stdout is not None
        try:
            for line in server.stdout:
                write(console, line)
                if line.strip().startswith("Try"):
                    break
            else:
                raise SystemExit("The server did not start.")
            for words in ASKED:
                console.print()
                show(console, words, folder)
        finally:
            server.terminate()
            server.wait()
    console.print()  # the last line is cut where a browser's font is higher
    picture = console.export_svg(title="hfx", unique_id="hfx")
    PICTURE.write_text(FONTS.sub("", picture), encoding="utf-8")


def show(console: Console, words: Sequence[str], folder: str) -> None:
    """The command as it is typed, and all that it prints."""
    prompt(console, words)
    done = subprocess.run([HFX, *words], cwd=folder, capture_output=True, text=True, check=True)
    write(console, done.stderr + CUT.sub("…\n\n", done.stdout))


def write(console: Console, output: str) -> None:
    """The output without the lines of LEFT_OUT."""
    for line in output.splitlines():
        if not LEFT_OUT.match(line):
            console.print(Text(line.rstrip()))


def prompt(console: Console, words: Sequence[str]) -> None:
    """The line that is typed."""
    typed = " ".join(f'"{word}"' if " " in word else word for word in ("hfx", *words))
    console.print(Text.assemble(("$ ", "green"), (typed, "bold")))


if __name__ == "__main__":
    main()
