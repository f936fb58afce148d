"""What the demos share: an empty folder, commands that are printed before they run."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["Demo"]


class Demo:
    """A demo's folder, made anew each time (no other folder is touched), and its commands."""

    def __init__(self, parser: argparse.ArgumentParser, default_out: str) -> None:
        parser.add_argument("--out", type=Path, default=Path(default_out))
        self.arguments = parser.parse_args()
        self.out: Path = self.arguments.out
        marker = self.out / ".servetune-demo"
        if marker.is_file():
            shutil.rmtree(self.out)
        elif self.out.exists() and any(self.out.iterdir()):
            parser.error(f"{self.out} is there and no demo made it; name another --out")
        self.out.mkdir(parents=True, exist_ok=True)
        marker.touch()
        self._started_s = time.monotonic()

    def servetune(self, *arguments: str) -> None:
        """Print a servetune command and run it; stop the demo when it fails."""
        print(f"\n$ {shlex.join(['servetune', *arguments])}\n", flush=True)
        done = subprocess.run([sys.executable, "-m", "servetune", *arguments], check=False)
        if done.returncode:
            sys.exit(done.returncode)

    def finish(self) -> int:
        """Say how long it took and what it left."""
        took_s = time.monotonic() - self._started_s
        print(f"\nall of it took {took_s:.1f} s; look at {self.out}/ :")
        for path in sorted(self.out.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                print(f"  {path}")
        return 0
