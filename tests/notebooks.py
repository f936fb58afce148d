"""Notebooks run in a real kernel, as a process of its own: what they show, cell by cell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=int(sys.argv[3]), kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def executed(source, folder, *, timeout_s=120):
    """Cells of a notebook after a run; each has its outputs.

    Args:
        source: Notebook's file, or the code of its cells.
        folder: Folder that it runs in.
        timeout_s: Seconds that a cell may take.
    """
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    if not isinstance(source, Path):
        source = written(source, folder / "source.ipynb")
    done = folder / "executed.ipynb"
    environment = {**os.environ, "IPYTHONDIR": str(folder / ".ipython")}
    words = [sys.executable, "-c", _RUN, str(source), str(done), str(timeout_s)]
    run = subprocess.run(
        words,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s + 60,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(done.read_text(encoding="utf-8"))["cells"]


def written(cells, path):
    """A notebook of code cells."""
    made = [
        {"cell_type": "code", "id": f"c{i}", "source": code, "metadata": {}, "outputs": [],
         "execution_count": None}
        for i, code in enumerate(cells)
    ]  # fmt: skip
    about = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}
    path.write_text(json.dumps(about), encoding="utf-8")
    return path


def kinds(cell):
    """Kinds of a cell's outputs, in order."""
    return [output["output_type"] for output in cell["outputs"]]


def html_of(output):
    """HTML of an output, as one text."""
    return "".join(output["data"]["text/html"])
