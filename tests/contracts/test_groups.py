"""Files whose tests one process runs."""

from pathlib import Path

from groups import group_of

TESTS = Path(__file__).parents[1]


def test_every_file_with_a_group_has_it_where_the_scheduler_reads_it():
    files = set(TESTS.rglob("test_*.py")) - {Path(__file__)}
    marked = [path for path in files if "mark.xdist_group(" in path.read_text()]
    assert len(marked) >= 8
    assert [path.name for path in marked if group_of(path) is None] == []
