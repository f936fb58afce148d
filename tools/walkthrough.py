"""Run of examples/walkthrough.ipynb that keeps what a reader on GitHub sees.

`python tools/walkthrough.py` runs the notebook in an empty folder and writes it back with its
outputs. Frames are taken out of them, as GitHub does, so that the file stays small; so are times of
execution, so that a run without a change of results changes little.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "walkthrough.ipynb"

_FRAME = re.compile(r"<iframe\b.*?</iframe>", re.S)
_IN_PLACE = "<p><em>Here a notebook shows the page of the run; GitHub leaves it out.</em></p>"


def without_frames(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells whose outputs have no frame, and no times of execution."""
    for cell in cells:
        cell["metadata"] = {}
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                text = _FRAME.sub(_IN_PLACE, "".join(data["text/html"]))
                data["text/html"] = text.splitlines(keepends=True)
    return cells


def main() -> int:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    made = json.loads(nbformat.writes(notebook))
    made["cells"] = without_frames(made["cells"])
    made["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{NOTEBOOK.name}: {NOTEBOOK.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
