"""The fake server, with moods that change from start to start: `moody.py --moods A,B,..`.

Moods: `fine`; `exits-A`, `exits-B` (at once, each with words of its own); `dies` (in the middle
of the first load). The last one stays. A file in the working folder counts the starts.
"""

import sys
from pathlib import Path

from servetune.testing import fake_server

COUNT = Path("starts")


def main() -> None:
    at = sys.argv.index("--moods")
    moods = sys.argv[at + 1].split(",")
    del sys.argv[at : at + 2]
    starts = int(COUNT.read_text()) if COUNT.exists() else 0
    COUNT.write_text(str(starts + 1))
    mood = moods[min(starts, len(moods) - 1)]
    if mood.startswith("exits"):
        sys.stdout.write(f"RuntimeError: the {mood.partition('-')[2]} gave way at 0x{starts:x}\n")
        sys.exit(1)
    if mood == "dies":
        sys.argv += ["--die-at-request", "8"]
    fake_server.main()


main()
