"""What all tests share: where the optional shared data are, and the command line as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared():
    """The folder of shared measurements; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("SERVETUNE_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("the shared data are not here")
    return folder


@pytest.fixture
def servetune(tmp_path):
    """Run the command line as a user would, in an empty folder."""

    def run(*arguments, timeout_s=120, **options):
        return subprocess.run(
            [sys.executable, "-m", "servetune", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd=options.pop("cwd", tmp_path),
            **options,
        )

    return run
