"""A server to load; doubles of AWS and of a collector made importable, which pytest does not."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from servetune.testing.server import Behaviour, FakeServer

for _folder in ("deploy", "loadgen"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))


@pytest.fixture
def server():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    fake = FakeServer(Behaviour())
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result(10)
    yield fake
    asyncio.run_coroutine_threadsafe(fake.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
