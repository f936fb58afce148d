"""Start a server as servetune does, print the ids of its processes, and die by SIGKILL."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from servetune.servers.process import ServerProcess


def main() -> None:
    mode, port, log_path, way = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    script = Path(__file__).with_name("misbehave.py")
    server = ServerProcess(
        [sys.executable, str(script), mode, str(port)], log_path=log_path, port=port
    )
    with server:
        server.wait_ready(30)
        fork = 0
        if way == "fork":
            # It holds every pipe of servetune open and lives on.
            fork = os.fork()
            if fork == 0:
                signal.pause()
        ids = " ".join(map(str, [*server.processes(), fork]))
        sys.stdout.write(ids)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


main()
