"""A headless Chromium asked through its DevTools protocol: what a page logged, fetched and drew, and how it looks."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Tab": (9, ""), "Enter": (13, "\r")}  # name -> its code, and what it types
START, ANSWER = 60.0, 60.0  # seconds; machines with other work take their time


def find() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_chromium = pytest.mark.skipif(
    find() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


class Page:
    """One tab. `logged` and `fetched` fill as events come: they are read while an answer is awaited."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._last = socket, 0
        self.logged: list[str] = []
        self.fetched: list[str] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            self._note(message)
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Load the file and wait until all its plots are drawn."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + ANSWER
        while not self.value("document.readyState === 'complete' && !!document.documentElement.dataset.drawn"):
            assert time.monotonic() < until, f"not drawn: {self.logged}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press and release a key of KEYS."""
        code, text = KEYS[key]
        typed = {"text": text} if text else {}
        for kind, said in (("keyDown", typed), ("keyUp", {})):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **said)

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.logged.append(" ".join(str(part.get("value", part.get("description"))) for part in parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.logged.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.logged.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.fetched.append(parameters["request"]["url"])


@contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A tab of a Chromium of its own, with an empty profile in the folder PROFILE."""
    import websocket

    command = [
        str(find()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        connection = websocket.create_connection(_address(profile, running), timeout=ANSWER, suppress_origin=True)
        with closing(connection):
            opened = Page(connection)
            for domain in ("Page", "Runtime", "Log", "Network"):
                opened.ask(f"{domain}.enable")
            yield opened
            with suppress(Exception):  # it may be gone before it answers
                opened.ask("Browser.close")
    finally:
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _address(profile: Path, running: subprocess.Popen[bytes]) -> str:
    """Where the first tab listens. Raises AssertionError when the browser ended or never said so."""
    from urllib.request import urlopen

    written, until = profile / "DevToolsActivePort", time.monotonic() + START
    while not (written.exists() and written.read_text().count("\n")):
        assert running.poll() is None, f"Chromium ended with {running.returncode}"
        assert time.monotonic() < until, "Chromium does not start"
        time.sleep(0.05)
    port = written.read_text().splitlines()[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
