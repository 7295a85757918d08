"""The dialects of the public HTTP port: one file each, beside Triton's V2 protocol.

A new dialect is a file with a `DIALECT`, and its row in `DIALECTS`.
"""

from hfx.front.dialect import Dialect
from hfx.front.dialects import huggingface, mlserver, openai, tei

DIALECTS: tuple[Dialect, ...] = (openai.DIALECT, huggingface.DIALECT, tei.DIALECT, mlserver.DIALECT)
