"""Runs a program in a separate network namespace, with one port that is reachable from outside.

It is for servers that always listen on all addresses. In `python3 isolated.py FD PORT COMMAND…`, FD is a listening
socket of the outer network. The program starts COMMAND in a new namespace that has only a loopback, and forwards
connections of FD to PORT there. It needs only the standard library.
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
NO_NAMESPACE = 3  # the exit code if the kernel refuses a namespace
CHUNK_BYTES = 1 << 16


def leave_network() -> None:
    """Enter a new network namespace with a loopback. Raises OSError if the kernel or a container's rules forbid it."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:  # root may do this; other users also need a user namespace
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))


async def pass_on(listener: socket.socket, port: int, program: subprocess.Popen[bytes]) -> int:
    """Forward connections of `listener` to `port` until `program` ends. Returns the program's exit code."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()  # the program is not listening yet
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
        pass  # a side closed the connection
    finally:
        writer.close()


def main() -> int:
    """Run a command in a network namespace of its own, which one port of this machine reaches."""
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
