"""Types of a trial's results: JSON objects under the journal's field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

#: Results of a trial by field name, read-only; `docs/reference/metrics.md` lists the fields.
ResultFields: TypeAlias = Mapping[str, Any]
