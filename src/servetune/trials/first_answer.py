"""First answer: the last check of readiness, a real completion however long it takes.

A server may report health and load or compile at the first request. The request is sent beside the
wait, so that a death or an interrupt meanwhile is noticed as fast as ever.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from servetune.engines import FirstCompletion
from servetune.errors import ServerRefused, ServetuneError
from servetune.loadgen import Target, fetch_blocking

_LOOK_S = 0.1


class FirstAnswer:
    """Check that asks a server once; called again and again for what is missing.

    Any answer counts but 503, by which a server says itself that it is not ready. A refusal counts
    too: whether it spoils a trial, the trial's own requests tell.

    Args:
        asked: Function that makes the request once the server is healthy, as the model's name may
            have to be asked for.
        target: Server.
        timeout_s: Time limit of the answer.

    Attributes:
        took_s: Seconds of the answer that counted; `None` while there is none.
        refusal: Status in words, where it is not one of success.
    """

    def __init__(
        self, request_of: Callable[[], FirstCompletion], target: Target, *, timeout_s: float
    ) -> None:
        self._request_of, self._target, self._timeout_s = request_of, target, timeout_s
        self._thread: threading.Thread | None = None
        self._problem = ""
        self.took_s: float | None = None
        self.refusal: str | None = None

    def __call__(self) -> str | None:
        """Description of what is missing, `None` when the answer is there; waits a moment for
        it.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="first completion", daemon=True)
            self._thread.start()
        self._thread.join(_LOOK_S)
        if self._thread.is_alive():
            return "its first completion has not come"
        if self.took_s is not None:
            return None
        self._thread = None
        return f"its first completion failed: {self._problem}"

    def _send(self) -> None:
        begin_s = time.monotonic()
        try:
            request_of = self._request_of()
            body = json.dumps(request_of.body).encode()
            fetch_blocking(self._target, request_of.path, timeout_s=self._timeout_s, body=body)
        except ServerRefused as error:
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                self._problem = error.message
                return
            self.refusal = error.message
        except ServetuneError as error:
            self._problem = error.message
            return
        self.took_s = time.monotonic() - begin_s
