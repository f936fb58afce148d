"""The fake server, which writes megabytes to its log with every request."""

import sys

from servetune.testing import fake_server
from servetune.testing.server import FakeServer


def main() -> None:
    answer, line = FakeServer.answer, "all is well " * 10 + "\n"

    async def told(self, connection, method, path, body):
        if method == "POST":
            sys.stdout.write(line * 20_000)
        await answer(self, connection, method, path, body)

    FakeServer.answer = told
    fake_server.main()


main()
