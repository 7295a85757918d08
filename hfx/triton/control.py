"""Triton's model control: loading and unloading single models of a running server.

Who may load models runs any code as the server's user, and every local user can read a key in the server's arguments.
So control is open only where HTTP is a socket in the server's own folder, which no other user can enter.
"""

from __future__ import annotations

import http.client
import json
from urllib.parse import quote

from hfx.errors import ServerError
from hfx.triton.liveness import call


def load(http_url: str, model: str, timeout: float) -> None:
    """Load `model`, anew when a file of it has changed; the one before serves until then, and on when this fails.

    Raises ServerError with Triton's reason when it does not load, or when the server does not answer for `timeout` s.
    """
    _change(http_url, model, "load", timeout)


def unload(http_url: str, model: str, timeout: float) -> None:
    """Unload `model` once its requests are answered; raises ServerError when the server does not answer."""
    _change(http_url, model, "unload", timeout)


def _change(http_url: str, model: str, action: str, timeout: float) -> None:
    try:
        call(f"{http_url}/v2/repository/models/{quote(model, safe='')}/{action}", b"{}", timeout)
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"Triton did not {action} {model}: {_reason(str(error))}.", "Its log has more.") from error


def _reason(text: str) -> str:
    """Triton's words in the JSON of a refusal."""
    _, brace, rest = text.partition("{")
    try:
        words = str(json.loads(brace + rest)["error"])
    except (ValueError, LookupError, TypeError):
        words = text
    return words.strip().rstrip(".")
