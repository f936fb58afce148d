"""`docs/reference/metrics.md` names code that is there and fields that results have."""

import importlib
import re
from array import array
from pathlib import Path

import numpy as np
import pytest

from servetune.metrics import METRICS, Record, RequestedLengths, parse_constraints, summarize

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
DEFINITIONS = [section for section in SECTIONS if not section.startswith("Notation")]


def named(section, kind):
    lines = re.findall(rf"^- {kind}: (.+)$", section, flags=re.MULTILINE)
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line)]


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(0)
    due_s = np.cumsum(rng.exponential(0.1, 400))
    records = [
        Record(
            index=index,
            input_tokens=10,
            output_tokens=5,
            due_s=at_s,
            sent_s=at_s + 0.001,
            end_s=at_s + 0.6,
            chunk_times_s=array("d", at_s + rng.uniform(0.1, 0.5) * np.linspace(0.5, 1, 5)),
            connect_s=0.001,
            counted_output_tokens=5,
            text_characters=20,
        )
        for index, at_s in enumerate(due_s.tolist())
    ]
    return summarize(
        records,
        duration_s=float(due_s[-1]) + 0.6,
        per_request_limits=parse_constraints("ttft<=400ms"),
        requested=RequestedLengths(output_tokens={}),
    )


@pytest.mark.parametrize("section", DEFINITIONS, ids=lambda section: section.splitlines()[0])
def test_every_definition_names_its_code(section):
    names = named(section, "Code")
    assert names, "no line '- Code:'"
    for name in names:
        module, _, place = re.match(r"([a-z_.]+)\.(([A-Z]\w+\.)?\w+)$", name).group(1, 0, 2)
        value = importlib.import_module(f"servetune.{module}")
        for part in place.split("."):
            known = part in getattr(value, "__annotations__", ()) or hasattr(value, part)
            assert known, name
            value = getattr(value, part, None)


@pytest.mark.parametrize("section", DEFINITIONS, ids=lambda section: section.splitlines()[0])
def test_every_definition_names_fields_that_results_have(section, results):
    fields = named(section, "Journal")
    assert fields or section.startswith("Other tools")
    for field in fields:
        value = results
        for part in field.split("."):
            assert part in value, field
            value = value[part]
        if field != "accept_length":
            assert value is not None, field


def test_every_field_and_every_metric_is_defined(results):
    page = PAGE.read_text(encoding="utf-8")
    for name in [*METRICS, *results]:
        assert name in page, name
