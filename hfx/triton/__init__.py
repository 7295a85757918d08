"""Starting, supervising and stopping a real Triton server: a process of a local tritonserver, or a container.

`EmbeddedServer` is the process that runs the nvidia-pytriton wheel's tritonserver, unless it is given another one.
"""

from hfx.triton.docker import DockerServer
from hfx.triton.server import Server
from hfx.triton.supervisor import StopSignals
from hfx.triton.triton_process import TritonProcess

EmbeddedServer = TritonProcess

__all__ = ["DockerServer", "EmbeddedServer", "Server", "StopSignals", "TritonProcess"]
