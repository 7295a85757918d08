"""A program in a network of its own, reached through sockets that listen outside it.

For servers that bind every address of the machine and can't be told otherwise. `python3 isolated.py FD PORT COMMAND…`
(FD: a listening socket of the network outside) leaves the network, starts COMMAND in a new one, where only its
own loopback exists, and passes the connections of FD on to PORT there. It needs the standard library alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # sched.h
SIOCSIFFLAGS = 0x8914
IFF_UP, IFF_RUNNING = 0x1, 0x40
NO_NAMESPACE = 3  # the exit code where the kernel refuses
CHUNK_BYTES = 1 << 16


def leave_network() -> None:
    """Enter a new network with a loopback. Raises OSError where the kernel or a container's rules refuse."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:  # root may; others in a user namespace
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))


async def pass_on(listener: socket.socket, port: int, program: subprocess.Popen[bytes]) -> int:
    """Connect what arrives at `listener` to `port` until `program` ends; its exit code."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()  # not listening yet
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.terminate)
    async with await asyncio.start_server(connected, sock=listener):
        return await asyncio.to_thread(program.wait)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # either side has gone
    finally:
        writer.close()


def main() -> int:
    """Run the command line."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    try:
        leave_network()
    except OSError as error:
        print(f"No network namespace here: {error}.", flush=True)
        return NO_NAMESPACE
    code = asyncio.run(pass_on(listener, int(sys.argv[2]), subprocess.Popen(sys.argv[3:])))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
