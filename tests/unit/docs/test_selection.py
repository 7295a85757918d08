"""The test files that a change can reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selection import Modules

FILES = {
    "hfx/__init__.py": "",
    "hfx/errors.py": "",
    "hfx/front/__init__.py": "",
    "hfx/front/__main__.py": "from hfx.front import app",
    "hfx/front/app.py": "from hfx.errors import HfxError",
    "hfx/front/page.html": "",
    "hfx/engine/beam.py": "from .search import Search",
    "hfx/engine/search.py": "",
    "hfx/cli/__init__.py": "from hfx.cli.commands import Commands",
    "hfx/cli/commands.py": "COMMANDS = {'serve': 'hfx.cli.serve', 'export': 'hfx.cli.export'}",
    "hfx/cli/serve.py": "import hfx.front",
    "hfx/cli/export.py": "",
    "tests/unit/conftest.py": "@pytest.fixture\ndef served():\n    import hfx.front",
    "tests/unit/test_process.py": "WORDS = ['-m', 'hfx.front']",
    "tests/unit/test_serve.py": "from hfx.cli import main\n\ndef test_a():\n    main(['serve'])",
    "tests/unit/test_export.py": "from hfx.cli import main\n\ndef test_a():\n    main(['export'])",
    "tests/unit/test_fixture.py": "def test_a(served): pass",
    "tests/unit/test_beam.py": "from hfx.engine.beam import Beam",
    "tests/unit/test_page.py": "from pathlib import Path\n\nREADME = Path('README.md')",
}


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("hfx/errors.py", {"process", "serve", "fixture"}),
        ("hfx/front/page.html", {"process", "serve", "fixture"}),
        ("hfx/engine/search.py", {"beam"}),
        ("hfx/cli/export.py", {"export"}),
        ("hfx/cli/commands.py", {"serve", "export"}),
        ("tests/unit/test_beam.py", {"beam"}),
        ("README.md", {"page"}),
        ("docs/gate.md", set()),
    ],
)
def test_a_change_reaches_the_tests_that_import_what_changed(changed: str, reached: set[str], tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = Modules(tmp_path).reached([Path(changed)])
    assert {path.stem.removeprefix("test_") for path in files if path.stem.startswith("test_")} == reached
