"""Starting, supervising and stopping a real Triton server: a process of a local tritonserver, or a container.

`EmbeddedServer` is a process that runs the tritonserver of the nvidia-pytriton wheel, or of another installation.
"""

from hfx.triton.docker import DockerServer
from hfx.triton.server import Server
from hfx.triton.supervisor import StopSignals
from hfx.triton.triton_process import TritonProcess

EmbeddedServer = TritonProcess

__all__ = ["DockerServer", "EmbeddedServer", "Server", "StopSignals", "TritonProcess"]
