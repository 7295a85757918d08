"""The dialects of the public HTTP port besides Triton's V2 protocol, each in one file.

To add a dialect, write a file with a `DIALECT` and add it to `DIALECTS`.
"""

from hfx.front.dialect import Dialect
from hfx.front.dialects import cohere, huggingface, jina, mlserver, openai, presidio, tei, tgi, vllm

# Descriptions of the API list them in this order. A path without a route gets the errors of the first that claims it.
DIALECTS: tuple[Dialect, ...] = tuple(
    module.DIALECT for module in (openai, huggingface, tei, tgi, cohere, jina, vllm, presidio, mlserver)
)
