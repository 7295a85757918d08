"""The other tests of native operators again, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FLAGS = "-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++, whose sanitizers are libraries of their own")
def test_sanitizers_find_nothing() -> None:
    # ASan looks for the function that throws when it starts: ONNX Runtime's library comes later.
    preloaded = ":".join(map(_library, ("libasan.so", "libstdc++.so")))
    environment = {
        **os.environ,
        "HFX_NATIVE_TEST_FLAGS": FLAGS,
        "LD_PRELOAD": preloaded,
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",  # Python's own would be reported
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", "-m", "", "-x", str(HERE)]
    # Programs with ThreadSanitizer can't have AddressSanitizer's library as well.
    others = [f"--ignore={__file__}", "-k", "not threads]"]
    done = subprocess.run([*tests, *others], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def _library(name: str) -> str:
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
