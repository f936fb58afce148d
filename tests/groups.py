"""Group of a file of tests, all of which one process runs."""

import functools
import re

_MARK = re.compile(r"^pytestmark = .*?xdist_group\(\"(\w+)\"\)", re.MULTILINE | re.DOTALL)


@functools.cache
def group_of(path):
    """Name in the `xdist_group` that a file's `pytestmark` has, or None."""
    found = _MARK.search(path.read_text())
    return found and found[1]
