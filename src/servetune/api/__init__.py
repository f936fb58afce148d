"""The library: one request and one function for each verb; `import servetune` is this room."""

from servetune.api.machine import Machine
from servetune.api.recommendation import Pick, Recommend, recommend
from servetune.api.reporting import Report, Reported, write_report
from servetune.api.request import Request, fields_of, schema
from servetune.api.trials import Trials, read

__all__ = [
    "Machine",
    "Pick",
    "Recommend",
    "Report",
    "Reported",
    "Request",
    "Trials",
    "fields_of",
    "read",
    "recommend",
    "schema",
    "write_report",
]
