"""The dialects of the public HTTP port: one file each, beside Triton's V2 protocol.

A new dialect is a file with a `DIALECT`, and its row in `DIALECTS`.
"""

from hfx.front.dialect import Dialect
from hfx.front.dialects import cohere, huggingface, jina, mlserver, openai, tei, tgi, vllm

DIALECTS: tuple[Dialect, ...] = (
    openai.DIALECT,
    jina.DIALECT,
    cohere.DIALECT,
    vllm.DIALECT,
    huggingface.DIALECT,
    tgi.DIALECT,
    tei.DIALECT,
    mlserver.DIALECT,
)
