"""The Triton of the server tests: the nvidia-pytriton wheel's, or an installation named by HFX_TEST_TRITON.

The folder of an installation has bin/tritonserver, backends/ and lib/, as /opt/tritonserver in NVIDIA's images, and its
Python backend has a stub for this Python. The tests then run `hfx serve --with local`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from hfx.triton import TritonProcess
from hfx.triton.installation import Installation, find_on_path, find_wheel
from hfx.triton.liveness import SERVER

VARIABLE = "HFX_TEST_TRITON"
FOLDER = os.environ.get(VARIABLE, "")
WITH = ("--with", "local") if FOLDER else ()

needs_wheel = pytest.mark.skipif(
    bool(FOLDER), reason=f"about the Triton of the nvidia-pytriton wheel; {VARIABLE} is {FOLDER}"
)


def find() -> Installation:
    """Return the Triton of the tests."""
    return find_on_path() if FOLDER else find_wheel()


def use() -> None:
    """Make the servers of this process and its children use that Triton."""
    if not FOLDER:
        return
    folder = Path(FOLDER).absolute()
    if not (folder / "bin" / SERVER).is_file():
        raise pytest.UsageError(f"{VARIABLE} is {FOLDER}, which has no bin/{SERVER}.")
    paths = {
        "PATH": (folder / "bin", Path(sys.executable).parent),
        "LD_LIBRARY_PATH": (sysconfig.get_config_var("LIBDIR"), folder / "lib"),
    }
    for name, first in paths.items():
        os.environ[name] = os.pathsep.join([*map(str, first), *filter(None, [os.environ.get(name)])])
    TritonProcess.__init__.__kwdefaults__["find"] = find
