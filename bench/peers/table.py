"""The closed table of peers, and for what each is compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.peers import ctranslate2, genai, openvino, optimum, torch
from bench.peers.library import Library, Way
from bench.peers.mlserver_client import MLServer
from bench.peers.ours import Ours
from bench.peers.packages import TRANSFORMERS_4
from bench.peers.peer import Peer

_TORCH = Way(torch.open_net, ("fp32", "bf16"))
_OPTIMUM_NEEDS = (optimum.PACKAGES, TRANSFORMERS_4)
_OPTIMUM = Way(optimum.open_net, ("int8", "fp32"), optimum.convert, optimum.finish, _OPTIMUM_NEEDS)
_CT2 = Way(
    ctranslate2.open_net,
    ("int8", "fp32"),
    ctranslate2.convert,
    needs=(ctranslate2.PACKAGES, TRANSFORMERS_4),
    has_load=True,
)
_INTEL_NEEDS = (openvino.PACKAGES, TRANSFORMERS_4)
_GENAI = Way(
    genai.open_net,
    ("int8", "int4", "bf16", "fp32"),
    genai.convert,
    needs=(*_INTEL_NEEDS, genai.PACKAGES),
    sources=lambda: [Path(openvino.__file__)],  # which does most of the conversion
    has_load=True,
)
_INTEL = Way(openvino.open_net, ("int8", "bf16", "fp32"), openvino.convert, needs=_INTEL_NEEDS)

_ALL: tuple[Peer, ...] = (
    Library(
        "torch",
        "transformers on torch",
        "the checkpoint as it is: generators and classifiers",
        {
            "decoder": _TORCH,
            "encoder-decoder": _TORCH,
            "classifier": Way(torch.open_classifier, ("fp32", "bf16")),
        },
        own=("torch", "transformers"),
    ),
    Library(
        "optimum",
        "optimum, ONNX Runtime",
        "exported graphs, int8 by quantize_dynamic: generators and classifiers",
        {
            "decoder": _OPTIMUM,
            "encoder-decoder": _OPTIMUM,
            "classifier": Way(
                optimum.open_classifier, ("int8", "fp32"), optimum.convert_classifier, optimum.finish, _OPTIMUM_NEEDS
            ),
        },
        own=("onnxruntime",),
    ),
    Library(
        "ctranslate2",
        "CTranslate2",
        "its own int8 kernels: generators, in static batches",
        {"decoder": _CT2, "encoder-decoder": _CT2},
    ),
    Library(
        "openvino",
        "OpenVINO",
        "GenAI's continuous batching for decoders; optimum-intel for encoder-decoders and classifiers",
        {
            "decoder": _GENAI,
            "encoder-decoder": _INTEL,
            "classifier": Way(
                openvino.open_classifier,
                ("int8", "bf16", "fp32"),
                openvino.convert_classifier,
                needs=_INTEL_NEEDS,
            ),
        },
        own=("openvino",),
    ),
    MLServer(),
    Ours(),
)
PEERS: Mapping[str, Peer] = {peer.name: peer for peer in _ALL}
