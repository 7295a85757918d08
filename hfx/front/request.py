"""A client's request, as the layers of the front (app.py) pass it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hfx.front.dialect import Target
from hfx.front.guard import HEAD_LENGTH, Receive
from hfx.front.refusals import Header, Refusal
from hfx.front.response import Response
from hfx.front.traces import Trace

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection
    from hfx.front.in_progress import Share

Scope = dict[str, Any]
SINGLE = {
    b"host", b"origin", b"content-length", b"transfer-encoding", b"content-encoding", b"authorization", HEAD_LENGTH,
}  # fmt: skip


class ClientRequest:
    """A request, the response to it, and the results of the layers so far.

    `method` is GET for HEAD; uvicorn then sends no body. `path` is as it was sent, not decoded, but without a slash at
    its end. `target` is the dialect's route that the path names. `endpoint` is the last
    part of a path of Triton's that takes a body, such as `infer`, and is empty for other paths. The first `json_size`
    bytes of `body` are JSON; binary tensors may follow. `share` is the request's part of the limits on all requests.
    """

    def __init__(self, scope: Scope, receive: Receive, response: Response) -> None:
        self.scope = scope
        self.receive = receive
        self.response = response
        self.method: str = "GET" if scope["method"] == "HEAD" else scope["method"]
        path: bytes = scope["raw_path"]
        self.path = path if path == b"/" else path.removesuffix(b"/")
        self.client: ClientConnection = scope["extensions"]["hfx"]["connection"]
        self.headers: dict[bytes, bytes] = {}
        self.trace = Trace()
        self.target: Target | None = None
        self.endpoint = b""
        self.body = b""
        self.json_size = 0
        self.share: Share | None = None

    @property
    def is_public(self) -> bool:
        """Whether the path needs no API key, and takes no body."""
        return self.target is not None and self.target.route.is_public

    @property
    def has_binary_tensors(self) -> bool:
        """Whether binary tensors follow the JSON of the body, in Triton's protocol."""
        return self.endpoint == b"infer" and HEAD_LENGTH in self.headers

    def read_headers(self) -> None:
        """Set `headers`. Raises Refusal (400) if a header that decides how the request is read occurs twice."""
        headers: list[Header] = self.scope["headers"]
        self.headers = dict(headers)
        if len(self.headers) != len(headers):
            names = [name for name, _ in headers]
            if any(names.count(name) > 1 for name in SINGLE):
                raise Refusal(400, "A header that says how to read the request is there twice. Send it once.")
