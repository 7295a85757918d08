"""The Python client for models that hfx serves.

    from hfx.client import Client

    with Client() as client:
        client.classify("sentiment", "Lovely!").label
        client.summarize("summaries", document, max_tokens=60).text
        with client.stream("stories", "Anna was") as pieces:
            for piece in pieces:
                print(piece.text, end="", flush=True)

`AsyncClient` has the same methods with `await`, `async with` and `async for`. All errors are classes of hfx.errors:

    HfxError
      UsageError              an invalid value, setting or address; nothing was sent
      ServerError             the server failed; `status`, `model` and `request_id` identify the request
        ServerUnreachable       nothing listens, or the connection broke: retried
        ServerBusy              its queue is full, or it accepts no more requests: retried
        RequestTimeout          no answer in time, or no new piece of a stream for too long
        RequestCancelled        the request was ended before its answer was complete
        RequestRefused          the server understood the request and refused it
          ModelUnknown            it has no model of this name

To keep the import fast, numpy and the library of the protocol are imported only when a client is made.
"""

if not __name__.startswith("hfx."):  # by the link at the top of the checkout, which would define all classes twice
    raise ImportError("This package is hfx.client. Import it by that name.")

from hfx.client.address import Tls
from hfx.client.async_client import AsyncClient
from hfx.client.client import Client
from hfx.client.results import (
    Answer,
    Classification,
    Embedding,
    Entities,
    Entity,
    Fill,
    Fills,
    Generation,
    Piece,
    Prediction,
    Rank,
    Token,
)
from hfx.client.retries import RetryPolicy
from hfx.client.session import TruncationWarning
from hfx.client.settings import GenerationSettings
from hfx.client.streams import AsyncTextStream, TextStream
from hfx.client.transport import Request, Stream, Transport
from hfx.metadata import ModelMetadata, TensorMetadata

__all__ = [
    "Answer", "AsyncClient", "AsyncTextStream", "Classification", "Client", "Embedding", "Entities", "Entity", "Fill",
    "Fills", "Generation", "GenerationSettings", "ModelMetadata", "Piece", "Prediction", "Rank", "Request",
    "RetryPolicy", "Stream", "TensorMetadata", "TextStream", "Tls", "Token", "Transport", "TruncationWarning",
]  # fmt: skip
