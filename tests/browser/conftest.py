"""Pages in headless Chromium, driven through its DevTools. Without Chromium they skip, in CI they fail."""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32, "n": 78, "p": 80, "t": 84}


class Page:
    """One tab. Collects its errors and its network requests."""

    def __init__(self, run: Callable[[Coroutine], Any], socket: aiohttp.ClientWebSocketResponse) -> None:
        self.run, self.socket, self.number = run, socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        return self.run(self._call(self.number, method, parameters))

    async def _call(self, number: int, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = json.loads((await self.socket.receive(timeout=60)).data)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def _hear(self, event: dict[str, Any]) -> None:
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(event["params"]["exceptionDetails"]["exception"]["description"])
        if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url="about:blank")  # because a changed fragment alone does not reload a file
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.protocol !== 'about:'")

    def js(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < deadline, f"never: {condition}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            held = text if kind == "keyDown" else {}
            code = {"key": key, "windowsVirtualKeyCode": KEYS[key]}
            self.call("Input.dispatchKeyEvent", type=kind, **code, **held)

    def click(self, selector: str, share: float = 0.5) -> None:
        """Clicks an element, at a share of its width."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.js(f"(box => [box.left + {share} * box.width, box.top + box.height / 2])({box})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def prefer(self, theme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of a new browser, which is closed after the test."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        cannot = pytest.fail if os.environ.get("CI") else pytest.skip
        cannot("needs Chromium; on Debian: apt install chromium")
    profile = tmp_path / "profile"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(
        [program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    loop = asyncio.new_event_loop()
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert browser.poll() is None and time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.05)
        address = f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
        session = loop.run_until_complete(_session())
        try:
            socket = loop.run_until_complete(_connect(session, address))
            yield Page(loop.run_until_complete, socket)
            loop.run_until_complete(socket.close())
        finally:
            loop.run_until_complete(session.close())
    finally:
        loop.close()
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(trust_env=False)


async def _connect(session: aiohttp.ClientSession, address: str) -> aiohttp.ClientWebSocketResponse:
    async with session.get(f"{address}/json/list") as answer:
        (target,) = [t for t in await answer.json() if t["type"] == "page"]
    return await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
