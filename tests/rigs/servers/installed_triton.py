"""The Triton that the server tests run on: the nvidia-pytriton wheel's, or an installation that HFX_TEST_TRITON names.

Such a folder has bin/tritonserver, backends/ and lib/, as /opt/tritonserver in NVIDIA's images; its Python backend has
a stub for this Python. `hfx serve` of the tests is `--with local` then.
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
    """The Triton that the tests run on."""
    return find_on_path() if FOLDER else find_wheel()


def use() -> None:
    """Have the servers of this process, and of those that it starts, run on it."""
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
