"""Why a GPU can't be used: the texts of CUDA, ONNX Runtime, Triton and Docker, what they mean, and what helps."""

from __future__ import annotations

import re

# A text of CUDA 13, ONNX Runtime 1.31, Triton 2.51, Docker or hfx's own models, its meaning, and the advice.
CAUSES = (
    (
        r"CUDA failure 35\b|CUDA driver version is insufficient|CUDA's error 803\b|CUDA's driver can't be loaded"
        r"|there is no driver of NVIDIA|the driver \S+ has no function|nvidia-container-cli: initialization error"
        r"|unsatisfied condition: cuda>=",
        "the driver of the GPU is missing, or too old for this CUDA",
        "Install a driver for which nvidia-smi shows the CUDA of onnxruntime-gpu or a later one (CUDA 13: driver 580)",
    ),
    (
        r"CUDA failure 100\b|no CUDA-capable device is detected|CUDA's error 100\b",
        "CUDA finds no GPU",
        "Compare CUDA_VISIBLE_DEVICES with the GPUs that nvidia-smi -L lists",
    ),
    (
        r"CUDA failure 101\b|CUDA's error 101\b|invalid device ordinal|Invalid device ID: \d"
        r"|specifies invalid or unsupported gpu id",
        "there is no GPU with the configured number, or Triton does not support it",
        "Change gpus in configs/gpu.pbtxt, or CUDA_VISIBLE_DEVICES, to GPUs that nvidia-smi -L lists",
    ),
    (
        r"CUDA failure 2\b|GPU \d+ has no room|BFCArena::AllocateRawInternal|CUDA's error 2\b",
        "the GPU has too little free memory",
        "End programs that nvidia-smi shows, leave models out with --models, export generators with fewer --slots",
    ),
    (
        r"Failed to load library \S*libonnxruntime_providers_cuda\.so with error: (?P<library>lib[^:\s]+)",
        "onnxruntime-gpu does not find the library {library}",
        "Install CUDA 13 and cuDNN 9, and name their folders in LD_LIBRARY_PATH",
    ),
    (
        r"this onnxruntime has no CUDAExecutionProvider|CUDA execution provider is not enabled in this build",
        "the onnxruntime that is installed is the one for CPUs",
        "Install onnxruntime-gpu in its place",
    ),
    (
        r"CUDA failure 209\b|no kernel image is available for execution",
        "this onnxruntime-gpu has no code for the architecture of the GPU",
        "Use a GPU that it supports",
    ),
    (
        r"could not select device driver .* with capabilities: \[\[gpu\]\]|failed to discover GPU vendor from CDI",
        "Docker can't give GPUs to containers",
        "Install the NVIDIA Container Toolkit",
    ),
)
_CONCERNED = re.compile(r"\bGPUs?\b|CUDA|NVIDIA|KIND_GPU|\[gpu\]|nvidia-container-cli")


def gpu_cause(reason: str, log: str = "") -> tuple[str, str]:
    """Return what kept a GPU from being used, and the advice; two empty texts if `reason` is not about a GPU.

    `reason` is the message of a failure. ONNX Runtime writes some of the texts only to the `log`. Triton writes others
    on every machine without a GPU, so the log is searched only if the reason is about a GPU.
    """
    for text in (reason, log) if _CONCERNED.search(reason) else ():
        for pattern, meaning, advice in CAUSES:
            if match := re.search(pattern, text):
                return meaning.format(**match.groupdict()), f"{advice}, or serve with --device cpu."
    return "", ""
