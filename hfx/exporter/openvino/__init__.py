"""Generators as OpenVINO models: a second emitter behind the same families, with attention over pages of K and V.

The blocks are those that exporter/graph writes as ONNX; what runs the models is python_backends/engine's.
"""

from hfx.python_backends.engine.openvino import import_openvino

import_openvino()  # before any module here does: OpenVINO's telemetry stays out
