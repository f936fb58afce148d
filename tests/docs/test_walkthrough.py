"""The walk-through runs from its first cell to its last, and what is kept of it is small."""

import json
import re
import runpy
from pathlib import Path

import pytest

from notebooks import executed, html_of

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "walkthrough.ipynb"
MOST_BYTES = 100_000


@pytest.mark.slow
def test_it_runs_in_an_empty_folder_and_shows_what_it_promises(tmp_path):
    cells = [cell for cell in executed(NOTEBOOK, tmp_path) if cell["cell_type"] == "code"]

    def of(call):
        [cell] = [cell for cell in cells if call in "".join(cell["source"])]
        return cell["outputs"]

    assert "rests on simulation alone" in html_of(of("pick = found.pick()")[-1])
    assert "<iframe" in html_of(of("found = st.tune(")[-1])
    assert "goodput" in "".join(of("measured = st.bench(")[-1]["data"]["text/plain"])
    assert not any(output.get("name") == "stderr" for cell in cells for output in cell["outputs"])
    files = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert {"model.json", "endpoint_config.json", "endpoint.json", "plan.json"} <= files
    assert (tmp_path / "results" / "rag.md").is_file()


def kept():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_readers_on_github_see_results_and_no_frames():
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    code = [cell for cell in kept() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) > 10
    text = json.dumps(outputs)
    assert "<iframe" not in text
    assert "how sure" in text
    assert "\\u001b" not in text, "colours of a terminal"
    assert not re.search(r"/(home|root|tmp|Users)/", text), "a path of the machine that ran it"


def test_frames_are_taken_out_and_tables_stay():
    without_frames = runpy.run_path(str(ROOT / "tools" / "walkthrough.py"))["without_frames"]
    html = ['<table></table><iframe srcdoc="a\n', '">x</iframe><p>b</p>']
    output = {"output_type": "execute_result", "data": {"text/html": html, "text/plain": "t"}}
    cell = {"cell_type": "code", "metadata": {"execution": 1}, "outputs": [output]}
    [clean] = without_frames([cell])
    shown = html_of(clean["outputs"][0])
    assert shown.startswith("<table></table><p><em>")
    assert shown.endswith("<p>b</p>")
    assert clean["metadata"] == {}


def test_its_links_lead_somewhere():
    text = "\n".join("".join(cell["source"]) for cell in kept() if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\((\.\./[^)#]+)", text)
    assert len(links) >= 4
    assert [link for link in links if not (NOTEBOOK.parent / link).is_file()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_it_is_linked(page):
    assert "examples/walkthrough.ipynb" in (ROOT / page).read_text(encoding="utf-8")
