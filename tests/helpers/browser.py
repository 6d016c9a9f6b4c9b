"""A headless Chromium, driven over its pipe by the DevTools protocol."""

import itertools
import json
import os
import shutil

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def needs_chromium():
    """Skip without Chromium; ``.ci/full`` sets WAFER_TESTS_IN_BROWSER, and then it is a failure."""
    if CHROMIUM is None and os.environ.get("WAFER_TESTS_IN_BROWSER"):
        pytest.fail("no Chromium: apt-get install -y chromium")
    return pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium")


class Browser:
    """One page of a browser of its own."""

    def __init__(self, profile):
        ours, theirs = os.pipe(), os.pipe()  # read by the browser as 3, written by it as 4
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--remote-debugging-pipe"]
        command += ["--disable-gpu", "--window-size=1400,900", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND"]

        moves = [(os.POSIX_SPAWN_DUP2, fd, 100 + k) for k, fd in enumerate((ours[0], theirs[1]))]
        moves += [(os.POSIX_SPAWN_DUP2, 100, 3), (os.POSIX_SPAWN_DUP2, 101, 4)]
        moves += [(os.POSIX_SPAWN_CLOSE, fd) for fd in (100, 101)]
        moves += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        self._pid = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=moves)
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")
        self._ids, self._rest, self._session = itertools.count(1), b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        size = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def close(self):
        self.call("Browser.close")
        os.waitpid(self._pid, 0)
        self._out.close()
        self._in.close()

    def call(self, method, **params):
        """What a method of the protocol returns."""
        message = {"id": next(self._ids), "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            while b"\0" not in self._rest:
                part = os.read(self._in.fileno(), 1 << 20)
                assert part, "the browser has ended"
                self._rest += part
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, script):
        """The JSON value of an expression; a promise is awaited."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, file, address=""):
        """Open a page from the disk; the milliseconds until it shows its run."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{file}{address}")
        ready = "document.body?.dataset.ready ?? (document.getElementById('facts')?.textContent"
        ready += "?.startsWith('This page cannot') ? 'failed: ' + facts.textContent : null)"
        wait = f"new Promise(go => {{ const t = setInterval(() => {{ const r = {ready};"
        wait += " if (r) { clearInterval(t); go(r); } }, 5); })"
        return float(self.evaluate(wait))

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def rows(self, selector):
        """The cells of a table's rows, without its heads."""
        script = f"[...document.querySelectorAll({json.dumps(selector + ' tr')})].slice(1)"
        return self.evaluate(script + ".map(r => [...r.cells].map(c => c.innerText.trim()))")

    def click(self, selector):
        """Click into the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)})"
        middle = "e.scrollIntoView({block: 'center'}), e.getBoundingClientRect().toJSON()"
        script = f"(e => ({middle}))({box})"
        at = self.evaluate(script)
        self.click_at(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)

    def click_plane(self, x, y):
        """Click into the middle of a PE, where the plane shows it."""
        script = "(p => { const b = p.canvas.getBoundingClientRect(), u = p.unit(); const [x, y] ="
        script += f" p.transform.apply([({x} + 0.5) * u, ({y} + 0.5) * u]);"
        self.click_at(*self.evaluate(script + " return [b.left + x, b.top + y]; })(window.plane)"))

    def click_at(self, x, y):
        where = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **where)
