"""AWS on loopback for a shell, to try commands by hand:

    PYTHONPATH=tests/deploy python -m doubles > aws.env & . ./aws.env

Endpoints answer with simulated engines that their models' environments describe. With every
description two minutes pass. Ctrl-C ends it, and everything is forgotten.
"""

import signal
import sys
import tempfile
import threading
from pathlib import Path

from doubles.fleet import Fleet
from doubles.server import FakeAws


class LazyFleet(Fleet):
    """Starts a container with the first request for it."""

    def url_of(self, endpoint: str, component: str | None) -> str | None:
        if (endpoint, component) not in self.containers:
            self.start(endpoint, component)
        return super().url_of(endpoint, component)


def main() -> None:
    double = FakeAws(look_s=120.0)
    told = double.environ | {"AWS_DEFAULT_REGION": "us-east-1"}
    sys.stdout.writelines(f"export {name}={value}\n" for name, value in told.items())
    sys.stdout.flush()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with tempfile.TemporaryDirectory() as folder, LazyFleet(double, Path(folder)):
        ended.wait()
    double.close()


if __name__ == "__main__":
    main()
