"""The fake server, which gives five tokens whatever is asked, and takes half the sequences."""

import json
import re
import sys

from servetune.testing import fake_server
from servetune.testing.server import FakeServer

MOST_TOKENS = 5


def main() -> None:
    answer = FakeServer.answer

    async def cut(self, connection, method, path, body):
        if method == "POST":
            asked = json.loads(body)
            asked["max_tokens"] = min(MOST_TOKENS, asked["max_tokens"])
            body = json.dumps(asked).encode()
        await answer(self, connection, method, path, body)

    FakeServer.answer = cut
    asked = re.search(r"--max-num-seqs[= ](\d+)", " ".join(sys.argv))
    if asked:  # as vLLM prints what it was given
        sys.stdout.write(f"non-default args: {{'max_num_seqs': {int(asked[1]) // 2}}}\n")
    fake_server.main()


main()
