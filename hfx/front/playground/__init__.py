"""The playground: a page at / of the front, on which the served models are tried (docs/playground.md).

The page is static and holds no secrets, so it is read without a key; what it requests needs one, as every request.
"""

from __future__ import annotations

from pathlib import Path

from hfx.front.dialect import Dialect, DialectRequest, Document, Route
from hfx.front.playground.forms import list_models
from hfx.front.refusals import Header, error_object

FOLDER = Path(__file__).parent
PAGE = "page.html"
SCRIPTS = (
    "page.js",
    "form.js",
    "calls.js",
    "requests.js",
    "generation.js",
    "answers.js",
    "timing.js",
    "snippets.js",
    "elements.js",
)
STYLES = ("page.css",)
MEDIA_TYPES = {".html": b"text/html", ".js": b"text/javascript", ".css": b"text/css"}
# Nothing but these files and requests to this server: no inline script or style, no other origin, no frame around it.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


def document_route(path: str, file: str, summary: str) -> Route:
    """A route to a file of this folder, which is read once."""
    media_type = MEDIA_TYPES[Path(file).suffix] + b"; charset=utf-8"
    document = Document((FOLDER / file).read_bytes(), ((b"content-type", media_type), *HEADERS))

    async def send(request: DialectRequest) -> Document:
        return document

    return Route("GET", path, send, summary, is_public=True)


DIALECT = Dialect(
    "hfx",
    (
        document_route("/", PAGE, "The playground, a page without a key."),
        *(document_route(f"/playground/{file}", file, "A file of the playground.") for file in (*SCRIPTS, *STYLES)),
        Route("GET", "/models", list_models, "The served models, and the fields of a request to each."),
    ),
    error_object,
)
