"""The reason that begins the message of each error: `[hfx:QUEUE_FULL] ...`. hfx/client/errors.py reads it.

Imports nothing: relays, which have no engine beside them, write it too.
"""

ENGINE_UNREACHABLE = "ENGINE_UNREACHABLE"  # the relay's engine has died, or is not there yet


def message(reason: str, text: str) -> str:
    """`text` with its reason in front."""
    return f"[hfx:{reason}] {text}"
