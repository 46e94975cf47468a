# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its debugging pipe: no packages, no ports."""

import base64
import json
import os
import subprocess
import tempfile


class Browser:
    """One page. `errors` collects what scripts throw and what they write with console.error."""

    def __init__(self, program):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser_read, to_browser = os.pipe()
        from_browser, from_browser_write = os.pipe()
        # The pipe's ends must be descriptors 3 and 4; a shell puts them there.
        command = f'exec "$@" 3<&{to_browser_read} 4>&{from_browser_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", program, "--headless=new", "--no-sandbox",
             "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(to_browser_read, from_browser_write), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser_read)
        os.close(from_browser_write)
        self._input = os.fdopen(to_browser, "wb", buffering=0)
        self._output = os.fdopen(from_browser, "rb")
        self._number = 0
        self._session = None
        self._events = []
        self.errors = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        session, self._session = self._session, None
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            self._session = session
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._input.close()
        self._output.close()
        self._profile.cleanup()

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._input.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self._number:
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def _receive(self):
        message = bytearray()
        while (byte := self._output.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            message += byte
        answer = json.loads(message)
        method, parameters = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(json.dumps(parameters["args"])[:500])
        elif method:
            self._events.append(method)
        return answer

    def open(self, path, width, height, theme):
        self.errors.clear()
        self._events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)
        self.set_theme(theme)
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def set_theme(self, theme):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": theme}])

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:800])
        return result["result"].get("value")

    def screenshot(self, path, whole=False):
        """The window, or the whole page."""
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(result["data"]))
