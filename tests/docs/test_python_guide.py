"""The examples of the Python guide and of the library's docstrings print what they say."""

import doctest
from pathlib import Path

import pytest

import servetune
from servetune import api

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_python_guide_print_what_they_say(monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(
        str(ROOT / "docs/guides/python.md"), module_relative=False, verbose=False
    )
    assert tried > 10
    assert not failed


@pytest.mark.parametrize(
    "name", [name for name in api.__all__ if ">>>" in (getattr(api, name).__doc__ or "")]
)
def test_the_examples_of_a_docstring_print_what_they_say(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(verbose=False)
    for example in doctest.DocTestFinder(recurse=False).find(getattr(servetune, name), name):
        runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0
