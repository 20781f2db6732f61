"""A real browser without a window, driven through a pipe: only what the tests of the page need."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1200,900",
    "--remote-debugging-pipe",
]


def find_browser() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Page:
    """One open page. Every question is asked until it is answered, or a deadline passes."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._ask("Page.enable")
        self._ask("Runtime.enable")

    def open(self, url: str) -> None:
        self._ask("Page.navigate", {"url": url})

    def width(self, pixels: int) -> None:
        """As on a screen that is so wide."""
        screen = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", screen)

    def run(self, script: str) -> Any:
        """What an expression of the page is; raises what it raises."""
        answer = self._ask("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, script: str, what: str, seconds: float = 30) -> Any:
        """Ask until the answer is true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := self.run(script):
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {what}; the page says: {self.text()}")

    def fill(self, selector: str, text: str) -> None:
        """As a person would: the field is changed and says so."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.value = {json.dumps(text)}; {where}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    def press(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def hold(self, selector: str) -> tuple[float, float]:
        """The mouse button goes down on it, and stays so; returns where that is."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.scrollIntoView({{block: 'center'}})")
        x, y = self.run(f"(({{x, y}}) => [x + 5, y + 5])({where}.getBoundingClientRect())")
        self._button("mousePressed", x, y)
        return x, y

    def let_go(self, x: float, y: float) -> None:
        """The mouse button comes up there."""
        self._button("mouseReleased", x, y)

    def _button(self, what: str, x: float, y: float) -> None:
        self._ask("Input.dispatchMouseEvent", {"type": what, "x": x, "y": y, "button": "left", "clickCount": 1})

    def text(self, selector: str = "body") -> str:
        """What a person can read there."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def picture(self, path: Path) -> None:
        """What a person sees."""
        path.write_bytes(b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            piece = os.read(self._from, 65_536)
            assert piece, "the browser is gone"
            self._rest += piece
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)


@contextmanager
def browser(program: str, home: Path) -> Iterator[Page]:
    """A browser of its own with one page, ended with everything it started."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def be_3_and_4() -> None:
        """The browser reads from 3 and writes to 4, whatever numbers the pipes have here."""
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={home}"],
        preexec_fn=be_3_and_4,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
