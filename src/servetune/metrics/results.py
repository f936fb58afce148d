"""Types of a trial's results: JSON objects under the journal's field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["JsonObject", "Results"]

#: Results of a trial, read by field name; `docs/reference/metrics.md` lists the fields.
Results: TypeAlias = Mapping[str, Any]
#: JSON object under construction.
JsonObject: TypeAlias = dict[str, Any]
