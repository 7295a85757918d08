"""Starting, supervising and stopping a real Triton server: the nvidia-pytriton wheel's binary, or a container."""

from hfx.triton.docker import DockerServer
from hfx.triton.embedded import EmbeddedServer
from hfx.triton.server import Server
from hfx.triton.supervisor import StopSignals

__all__ = ["DockerServer", "EmbeddedServer", "Server", "StopSignals"]
