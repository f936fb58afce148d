"""The fake server with a child in a session of its own that ignores SIGTERM, as workers may."""

import subprocess
import sys

from servetune.testing import fake_server

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
    sys.stdout.write(f"child {child.pid}\n")
    fake_server.main()


main()
