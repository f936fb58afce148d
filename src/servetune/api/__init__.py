"""The library: one request and one function for each verb; `import servetune` is this room."""

from servetune.api.calibration import Calibrate, CalibrationNames, KeptResult, calibrate
from servetune.api.estimate_results import Estimation, MachineComparison, Ranking
from servetune.api.estimation import Estimate, estimate
from servetune.api.machine import Machine
from servetune.api.recommendation import Pick, Recommend, recommend
from servetune.api.reporting import Report, Reported, write_report
from servetune.api.request import Request, fields_of, schema
from servetune.api.suggestion import SuggestedRuns
from servetune.api.table import TablePrediction
from servetune.api.trials import Trials, read

__all__ = [
    "Calibrate",
    "CalibrationNames",
    "Estimate",
    "Estimation",
    "KeptResult",
    "Machine",
    "MachineComparison",
    "Pick",
    "Ranking",
    "Recommend",
    "Report",
    "Reported",
    "Request",
    "SuggestedRuns",
    "TablePrediction",
    "Trials",
    "calibrate",
    "estimate",
    "fields_of",
    "read",
    "recommend",
    "schema",
    "write_report",
]
