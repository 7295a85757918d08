"""Tests that need optimum's exporter and transformers 4.57: the extra `[optimum]` (`make test-full`)."""

from __future__ import annotations

import transformers

collect_ignore_glob = [] if transformers.__version__.startswith("4.") else ["test_*.py"]
