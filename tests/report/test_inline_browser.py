"""The page in a notebook's frame, in a real browser: it runs there and reaches nothing else."""

import re
import shutil
import subprocess

import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import dashboard_html
from servetune.report.inline import frame_html

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
]
#: A page that tries to leave its frame, and tells of it on the console.
CURIOUS = """<!doctype html><script>
try { parent.document.title = 'reached'; console.log('reached the notebook'); }
catch (error) { console.log('kept in'); }
</script>"""


@pytest.fixture
def console(tmp_path):
    """Messages on the console of a notebook-like page with one frame."""

    def load(page):
        around = f"<!doctype html><meta charset=utf-8><title>notebook</title>{frame_html(page)}"
        (tmp_path / "notebook.html").write_text(around, encoding="utf-8")
        run = subprocess.run(
            [
                CHROMIUM,
                *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--enable-logging=stderr", "--timeout=4000", "--window-size=1200,1000"),
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--screenshot={tmp_path / 'shot.png'}",
                (tmp_path / "notebook.html").as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return re.findall(r'CONSOLE[^"]*"(.*)", source', run.stderr)

    return load


def test_a_frame_runs_scripts_that_cannot_leave_it(console):
    assert console(CURIOUS) == ["kept in"]


def test_the_dashboard_runs_in_a_frame_without_a_message(console):
    limits = parse_constraints("e2e_latency:p99<=60s")
    assert console(dashboard_html(factory.sweep(), limits, title="t")) == []
