"""The dialects of the public HTTP port besides Triton's V2 protocol, each in one file.

To add a dialect, write a file with a `DIALECT` and add it to `DIALECTS`.
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
