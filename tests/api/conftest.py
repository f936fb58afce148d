"""A server to load, and the doubles of AWS made importable; pytest's importlib mode does not."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from servetune.testing.server import Behaviour, FakeServer

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))


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
