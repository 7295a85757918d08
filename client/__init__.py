"""The Python client for models that hfx serves: `with Client() as client: client.classify("sentiment", "Lovely!")`.

Light on purpose: it imports numpy and gRPC, and nothing of the exporter.
"""

from hfx.client.client import Client
from hfx.client.results import Answer, Classification, Embedding, Entities, Entity, Prediction
from hfx.client.transport import GrpcTransport, ModelMetadata, Pending, TensorMetadata, Transport

__all__ = [
    "Answer",
    "Classification",
    "Client",
    "Embedding",
    "Entities",
    "Entity",
    "GrpcTransport",
    "ModelMetadata",
    "Pending",
    "Prediction",
    "TensorMetadata",
    "Transport",
]
