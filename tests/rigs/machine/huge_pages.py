"""Whether huge pages are available, and how much memory of this process's arenas is in use."""

from __future__ import annotations

import re
from pathlib import Path

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
AVAILABLE = _ENABLED.is_file() and "[never]" not in _ENABLED.read_text(encoding="utf-8")


def copied() -> int:
    """Return the bytes in use in this process's arenas of 256 MB in huge pages."""
    total = 0
    for region in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(encoding="utf-8")):
        size, used = (re.search(rf"(?m)^{name}: +(\d+) kB", region) for name in ("Size", "Rss"))
        if size and used and "hg" in region and int(size[1]) >= 256 << 10:
            total += 1024 * int(used[1])
    return total
