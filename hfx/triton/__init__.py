"""Starting and stopping a real Triton server: the binary of the nvidia-pytriton wheel, or a container.

Both are a `Server`; whoever serves a repository needs to know nothing else. This package knows repositories as
folders with config.pbtxt files and knows nothing of checkpoints, tasks or clients.
"""

from hfx.triton.docker import DockerServer
from hfx.triton.embedded import EmbeddedServer
from hfx.triton.server import Server
from hfx.triton.stop_signals import StopSignals

__all__ = ["DockerServer", "EmbeddedServer", "Server", "StopSignals"]
