"""Builds the files of a release, and proves that others can build the same bytes.

    python -m release build [DIST]         the wheel, the source distribution and SHA256SUMS of the last commit
    python -m release verify [DIST]        the proof, from these files alone
    python -m release advisories [FILE…]   pinned versions against the list of known vulnerabilities

`make release` runs all three in an environment with the tools of `requirements.txt`.
"""

from hfx.errors import HfxError


class Refused(HfxError):
    """Files of a release, or pinned versions, that are not as they must be."""
