"""Native operators of published models where hfx itself runs them."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from hfx import native
from hfx.errors import NativeMissing

LOG = logging.getLogger(__name__)


def is_foreign(library: Path, sha256: str) -> bool:
    """Whether a model's library of native operators is not this installation's, byte for byte.

    Such a one is not loaded here, as it would be foreign code; a server runs the code of its models. A log line says
    so. One that is not the file of the hash `sha256` is no matter of this function: opening the model refuses it.
    """
    try:
        found = library.read_bytes()
        if hashlib.sha256(found).hexdigest() != sha256 or found == native.library().read_bytes():
            return False
        reason = "is not the one of this hfx"
    except (NativeMissing, OSError) as error:
        reason = f"can't be compared with this installation's ({error})"
    LOG.warning("%s %s: ONNX Runtime runs the model. Fix: export it again", library, reason)
    return True
