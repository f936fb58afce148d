"""Chromium without a window, told what to do over its debugging pipe."""

import contextlib
import json
import os
import shutil
import subprocess
import time

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE_S = 40


class Chromium:
    """One browser with one page.

    Attributes:
        messages: What the page wrote to the console, and errors that it did not catch.
    """

    def __init__(self, profile):
        told, self._told = os.pipe()
        self._heard, heard = os.pipe()
        words = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"),
        ]
        # The browser reads from file 3 and writes to file 4.
        script = f'exec "$@" 3<&{told} 4>&{heard}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(told, heard),
            stderr=subprocess.DEVNULL,
        )
        os.close(told)
        os.close(heard)
        self._rest, self._number, self.messages = b"", 0, []
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = None
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self):
        """End the browser."""
        with contextlib.suppress(OSError):
            self.ask("Browser.close")
        self._process.wait(PATIENCE_S)
        os.close(self._told)
        os.close(self._heard)

    def ask(self, method, **parameters):
        """Result of a method of the debugging protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._told, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, address, width=1300, height=700):
        """Go to a page, in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Page.navigate", url=address)
        there = f"document.readyState == 'complete' && location.href.startsWith({address!r})"
        self.await_value(there)

    def value(self, expression):
        """Value of a JavaScript expression."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def await_value(self, expression, wanted=bool):
        """Value of an expression once `wanted` holds for it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted(found := self.value(expression)):
            assert time.monotonic() < deadline_s, (expression, found, self.messages)
            time.sleep(0.1)
        return found

    def screenshot(self, path):
        """Write a picture of the window."""
        import base64

        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))

    def _next(self):
        while b"\0" not in self._rest:
            piece = os.read(self._heard, 1 << 20)
            if not piece:
                raise OSError("the browser is gone")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        told = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(str(told["args"]))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(told["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            self.messages.append(told["entry"]["text"])
        return message
