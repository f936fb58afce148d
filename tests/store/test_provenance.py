import os
import platform
from datetime import UTC, datetime, timedelta

from servetune import __version__
from servetune.store.schema import now_utc, provenance


def test_a_result_says_when_where_and_with_which_versions_it_was_measured():
    found = provenance(started_at="2026-01-01T00:00:00.000+00:00", seed=7, engine_version="0.32.1")
    assert found == {
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "ended_at": found["ended_at"],
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "servetune": __version__,
        "engine_version": "0.32.1",
        "seed": 7,
    }


def test_times_are_of_utc_to_the_millisecond():
    text = now_utc()
    assert text.endswith("+00:00")
    assert len(text) == len("2026-01-01T00:00:00.000+00:00")
    assert abs(datetime.fromisoformat(text) - datetime.now(UTC)) < timedelta(minutes=1)
