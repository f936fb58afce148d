"""What the documentation promises is there, and what is there is documented."""

import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import servetune
from servetune import errors
from servetune.cli.main import VERBS
from servetune.metrics import METRICS, summarize
from servetune.metrics.record import Record

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "servetune"
ROOMS = [module.name for module in pkgutil.iter_modules(servetune.__path__) if module.ispkg]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_lists_what_it_offers_and_says_what_it_is(room):
    module = importlib.import_module(f"servetune.{room}")
    assert module.__doc__
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), f"{room}.__all__ names {name}, which is not there"


def test_reference_pages_are_what_the_code_says():
    pages = runpy.run_path(str(ROOT / "tools" / "reference_pages.py"))["pages"]()
    for name, text in pages.items():
        written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert written == text, f"docs/reference/{name} is old: run `make docs`"


def test_the_tour_draws_every_room_and_names_files_that_exist():
    tour = (ROOT / "docs" / "tour.md").read_text()
    for room in ROOMS:
        assert room in tour
    for path in re.findall(r"`([\w./-]+/[\w./-]*)`", tour):
        outside = path.startswith(("docs/", "tests/", "tools/", "src/", "frontend/"))
        base = ROOT if outside else PACKAGE
        assert (base / path).exists() or "NAME" in path, path
        if "NAME" in path:
            assert (base / path.replace("NAME", "vllm")).exists(), path


def test_the_tour_names_classes_and_tables_that_are_in_their_files():
    tour = (ROOT / "docs" / "tour.md").read_text()
    values = re.findall(r"^\| `(\w+)` \| .* \| `([\w/]+\.py)` \|$", tour, re.M)
    assert len(values) == 5
    tables = [
        (name, path)
        for name, paths in re.findall(r"(?:table|row of) `(\w+)` in (`[^|]*`)", tour)
        for path in re.findall(r"`([\w/]+\.py)`", paths)
    ]
    assert len(tables) >= 4
    for name, path in values + tables:
        text = (PACKAGE / path).read_text()
        assert re.search(rf"^(class )?{name}\b", text, re.M), f"{name} is not in {path}"


def test_paths_in_the_documents_exist():
    """Paths that begin with a folder of the repository or with a room."""
    made_by_runs = {"out", "results", "dist", "site"}  # folders of examples, not of the project
    bases = {path.name: ROOT for path in ROOT.iterdir() if path.is_dir()}
    bases = {name: base for name, base in bases.items() if name not in made_by_runs}
    bases |= dict.fromkeys(ROOMS, PACKAGE)
    missing = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]:
        if page.parent.name == "reference":  # names sources of other projects
            continue
        for path in re.findall(r"(?<![\w/.{])(\w[\w.-]*(?:/[\w.-]+)+/?)", page.read_text()):
            base = bases.get(path.partition("/")[0])
            is_path = path.endswith("/") or re.search(r"\.(py|toml|md|json|jsonl|html|csv)$", path)
            if base and is_path and not re.search("[A-Z]{4}", path.partition("/")[2]):
                found = any((one / path).exists() for one in (base, page.parent))
                if not found:
                    missing.append(f"{page.relative_to(ROOT)}: {path}")
    assert missing == []


def test_every_verb_is_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for verb in VERBS:
        assert f"servetune {verb}" in readme


def test_every_field_of_a_trials_results_is_in_the_journals_reference():
    page = (ROOT / "docs" / "reference" / "journal.md").read_text()
    record = Record(
        index=0,
        input_tokens=3,
        output_tokens=3,
        due_s=0.0,
        sent_s=0.0,
        end_s=1.0,
        chunk_times_s=(0.5, 0.7, 1.0),
    )
    statistics = re.compile(r"(mean|median|std|p90|p95|p99)_(ttft|itl|tpot|e2e_latency)_ms")
    for field in summarize([record], duration_s=1.0):
        if not statistics.fullmatch(field):
            assert f"`{field}`" in page, f"{field} is not in docs/reference/journal.md"


def test_every_metric_that_can_be_limited_is_documented():
    pages = (ROOT / "docs/reference/journal.md").read_text() + (
        ROOT / "docs/glossary.md"
    ).read_text()
    for metric in METRICS:
        assert metric in pages


def test_every_error_is_drawn_in_the_tree():
    drawn = errors.__doc__ or ""
    for name in errors.__all__:
        if hasattr(getattr(errors, name), "exit_code"):
            assert name in drawn, name


def test_relative_links_in_the_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_site_has_every_page_once():
    """Pages of `mkdocs.yml`, which `make site` builds."""
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r": ([\w/.-]+\.md)$", text, re.M)
    pages = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert sorted(listed) == sorted(pages)


def test_every_guide_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    for guide in ROOT.glob("docs/guides/*.md"):
        assert f"(guides/{guide.name})" in index, guide.name
