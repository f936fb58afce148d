"""Makes the doubles beside the tests importable; pytest's importlib mode does not."""

import sys
from pathlib import Path

import pytest

import forked

sys.path.insert(0, str(Path(__file__).parent))
forked.read_service_models_once()


@pytest.fixture
def world():
    """A double of AWS and a door to it, on one virtual clock."""
    pytest.importorskip("boto3", reason="boto3 is not installed (extra 'aws')")
    from aws_kit import World

    made = World()
    yield made
    made.double.close()
