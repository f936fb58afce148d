"""The library: one request and one function for each verb; `import servetune` is this room.

Names are looked up when they are used, so that a command imports what it needs and no more.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servetune.api.bench_request import Bench
    from servetune.api.benchmark import BenchResult, bench
    from servetune.api.calibration import Calibrate, CalibrationNames, KeptResult, calibrate
    from servetune.api.checks import Finding
    from servetune.api.checkup import Checkup, Doctor, doctor
    from servetune.api.deployment import (
        BentomlDeployment,
        CommandDeployment,
        ComposeDeployment,
        KserveDeployment,
        KubernetesDeployment,
        Rendered,
        RenderedEndpoint,
        SageMakerDeployment,
        ServiceDeployment,
        SystemdDeployment,
        render,
    )
    from servetune.api.endpoints import (
        Apply,
        Delete,
        EndpointChange,
        EndpointStatus,
        Logs,
        Orphans,
        Status,
        Update,
        apply,
        delete,
        logs,
        orphans,
        status,
        update,
    )
    from servetune.api.estimate_results import Estimation, MachineComparison, Ranking
    from servetune.api.estimation import Estimate, estimate
    from servetune.api.layout_study import ComparedLayouts, StudyLayouts, study_layouts
    from servetune.api.machine import Machine
    from servetune.api.recommendation import Pick, Recommend, recommend
    from servetune.api.reporting import Report, Reported, write_report
    from servetune.api.request import Request, fields_of, schema
    from servetune.api.simulated_comparison import SimulationComparison
    from servetune.api.simulation import Simulation, SimulationResult, simulate
    from servetune.api.staging import Staging, StagingPlan, plan_staging, stage
    from servetune.api.study import PlannedServer, StudyResult, tune
    from servetune.api.study_request import Study
    from servetune.api.study_run import TrialDone
    from servetune.api.suggestion import SuggestedRuns
    from servetune.api.table import TablePrediction
    from servetune.api.trials import Trials, read

__all__ = [
    "Apply",
    "Bench",
    "BenchResult",
    "BentomlDeployment",
    "Calibrate",
    "CalibrationNames",
    "Checkup",
    "CommandDeployment",
    "ComparedLayouts",
    "ComposeDeployment",
    "Delete",
    "Doctor",
    "EndpointChange",
    "EndpointStatus",
    "Estimate",
    "Estimation",
    "Finding",
    "KeptResult",
    "KserveDeployment",
    "KubernetesDeployment",
    "Logs",
    "Machine",
    "MachineComparison",
    "Orphans",
    "Pick",
    "PlannedServer",
    "Ranking",
    "Recommend",
    "Rendered",
    "RenderedEndpoint",
    "Report",
    "Reported",
    "Request",
    "SageMakerDeployment",
    "ServiceDeployment",
    "Simulation",
    "SimulationComparison",
    "SimulationResult",
    "Staging",
    "StagingPlan",
    "Status",
    "Study",
    "StudyLayouts",
    "StudyResult",
    "SuggestedRuns",
    "SystemdDeployment",
    "TablePrediction",
    "TrialDone",
    "Trials",
    "Update",
    "apply",
    "bench",
    "calibrate",
    "delete",
    "doctor",
    "estimate",
    "fields_of",
    "logs",
    "orphans",
    "plan_staging",
    "read",
    "recommend",
    "render",
    "schema",
    "simulate",
    "stage",
    "status",
    "study_layouts",
    "tune",
    "update",
    "write_report",
]

#: Name -> module that has it.
_HOMES: Mapping[str, str] = MappingProxyType(
    {
        "Apply": "endpoints",
        "Bench": "bench_request",
        "BenchResult": "benchmark",
        "BentomlDeployment": "deployment",
        "Calibrate": "calibration",
        "CalibrationNames": "calibration",
        "Checkup": "checkup",
        "CommandDeployment": "deployment",
        "ComparedLayouts": "layout_study",
        "ComposeDeployment": "deployment",
        "Delete": "endpoints",
        "Doctor": "checkup",
        "EndpointChange": "endpoints",
        "EndpointStatus": "endpoints",
        "Estimate": "estimation",
        "Estimation": "estimate_results",
        "Finding": "checks",
        "KeptResult": "calibration",
        "KserveDeployment": "deployment",
        "KubernetesDeployment": "deployment",
        "Logs": "endpoints",
        "Machine": "machine",
        "MachineComparison": "estimate_results",
        "Orphans": "endpoints",
        "Pick": "recommendation",
        "PlannedServer": "study",
        "Ranking": "estimate_results",
        "Recommend": "recommendation",
        "Rendered": "deployment",
        "RenderedEndpoint": "deployment",
        "Report": "reporting",
        "Reported": "reporting",
        "Request": "request",
        "SageMakerDeployment": "deployment",
        "ServiceDeployment": "deployment",
        "Simulation": "simulation",
        "SimulationComparison": "simulated_comparison",
        "SimulationResult": "simulation",
        "Staging": "staging",
        "StagingPlan": "staging",
        "Status": "endpoints",
        "Study": "study_request",
        "StudyLayouts": "layout_study",
        "StudyResult": "study",
        "SuggestedRuns": "suggestion",
        "SystemdDeployment": "deployment",
        "TablePrediction": "table",
        "TrialDone": "study_run",
        "Trials": "trials",
        "Update": "endpoints",
        "apply": "endpoints",
        "bench": "benchmark",
        "calibrate": "calibration",
        "delete": "endpoints",
        "doctor": "checkup",
        "estimate": "estimation",
        "fields_of": "request",
        "logs": "endpoints",
        "orphans": "endpoints",
        "plan_staging": "staging",
        "read": "trials",
        "recommend": "recommendation",
        "render": "deployment",
        "schema": "request",
        "simulate": "simulation",
        "stage": "staging",
        "status": "endpoints",
        "study_layouts": "layout_study",
        "tune": "study",
        "update": "endpoints",
        "write_report": "reporting",
    }
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A name of the library, from the module that has it."""
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
