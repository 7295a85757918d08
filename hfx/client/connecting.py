"""The transport for an address: gRPC or HTTP, for the blocking client or the asynchronous one.

The libraries of a protocol are imported here, when a client of it is made: `import hfx.client` stays fast.
"""

from __future__ import annotations

from hfx.client.address import Access, Address
from hfx.client.transport import Transport


def connect(address: Address, access: Access) -> Transport:
    """A transport that blocks."""
    if address.protocol == "http":
        from hfx.client.http_blocking import BlockingConnection
        from hfx.client.http_transport import HttpTransport

        return HttpTransport(BlockingConnection(address, access), address.url)
    from hfx.client.grpc_channels import BlockingChannel
    from hfx.client.grpc_transport import GrpcTransport

    return GrpcTransport(BlockingChannel(address, access), address.url)


def connect_async(address: Address, access: Access) -> Transport:
    """A transport for asyncio."""
    if address.protocol == "http":
        from hfx.client.http_async import AsyncConnection
        from hfx.client.http_transport import HttpTransport

        return HttpTransport(AsyncConnection(address, access), address.url)
    from hfx.client.grpc_channels import AsyncChannel
    from hfx.client.grpc_transport import GrpcTransport

    return GrpcTransport(AsyncChannel(address, access), address.url)
