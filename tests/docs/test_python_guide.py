"""The examples of the Python guide print what they say."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_python_guide_print_what_they_say(monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(
        str(ROOT / "docs/guides/python.md"), module_relative=False, verbose=False
    )
    assert tried > 10
    assert not failed
