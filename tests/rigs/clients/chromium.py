"""A headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.rigs.machine.waiting import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}  # name -> its code, and what it types
CONTROL = 2  # the modifier
SECONDS = 60.0  # machines with other work take their time


def find() -> str | None:
    """Return the browser of this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_chromium = pytest.mark.skipif(
    find() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


class Page:
    """A tab; `logged` and `fetched` are filled while an answer is awaited."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._last_id = 0
        self.logged: list[str] = []
        self.fetched: list[str] = []

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command of the protocol."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            self._note(message)
            if message.get("id") == self._last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        return wait_until(lambda: self.value(expression), expression, SECONDS)

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Show the page at `width` CSS pixels, in the light or the dark colours."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media="screen", features=[scheme])

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key of KEYS."""
        code, text = KEYS[key]
        typed = {"text": text} if text and not modifiers else {}
        for kind, content in (("keyDown", typed), ("keyUp", {})):
            self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                modifiers=modifiers, **content,
            )  # fmt: skip

    def type(self, text: str) -> None:
        """Write `text` at the focus."""
        self.command("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        answer = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.logged.append(" ".join(str(part.get("value")) for part in parameters["args"]))
            case "Runtime.exceptionThrown":
                self.logged.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.logged.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.fetched.append(parameters["request"]["url"])


@contextmanager
def tab(profile: Path) -> Iterator[Page]:
    """Yield a tab of a separate Chromium, with an empty profile in the folder `profile`."""
    import websocket

    command = [
        str(find()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = _address(profile, lambda: running.poll() is None)
        with closing(websocket.create_connection(url, timeout=SECONDS, suppress_origin=True)) as connection:
            page = Page(connection)
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.command(f"{domain}.enable")
            yield page
            with suppress(Exception):  # it may be gone before it answers
                page.command("Browser.close")
    finally:
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _address(profile: Path, is_running: Callable[[], bool]) -> str:
    """Return the URL of the first tab. Raises AssertionError if the browser ended or did not start in time."""
    port_file = profile / "DevToolsActivePort"

    def port() -> str:
        assert is_running(), "Chromium ended at its start"
        lines = port_file.read_text().splitlines() if port_file.exists() else []
        return lines[0] if len(lines) > 1 else ""

    with urlopen(f"http://127.0.0.1:{wait_until(port, 'Chromium starts', SECONDS)}/json/list") as answer:
        tabs = json.load(answer)
    return str(next(row["webSocketDebuggerUrl"] for row in tabs if row["type"] == "page"))
