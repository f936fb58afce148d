"""The fake server with little memory: `greedy.py at-start` or `greedy.py under-load`.

The limit is the kernel's (RLIMIT_AS), and so is the refusal.
"""

import os
import resource
import sys
import traceback
from pathlib import Path

from servetune.testing import fake_server
from servetune.testing.server import FakeServer

MIB = 1 << 20


def limit_memory(more_bytes: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, used + more_bytes))


def hoard_with_every_request() -> None:
    """Each answer leaves 32 MiB behind, until there is no more; then the process ends."""
    answer, hoard = FakeServer.answer, []

    async def greedy(self, connection, method, path, body):
        if method == "POST":
            try:
                hoard.append(bytearray(32 * MIB))
            except MemoryError:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        await answer(self, connection, method, path, body)

    FakeServer.answer = greedy


def main() -> None:
    when = sys.argv.pop(1)
    if when == "at-start":
        limit_memory(256 * MIB)
        bytearray(4096 * MIB)  # the weights
    limit_memory(528 * MIB)  # 16 answers and room for what the server itself needs
    hoard_with_every_request()
    fake_server.main()


main()
