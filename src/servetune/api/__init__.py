"""The library: one request and one function for each verb; `import servetune` is this room.

Names are looked up when they are used, so that a command imports what it needs and no more.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servetune.api.bench_request import Bench
    from servetune.api.benchmark import BenchLevels, BenchResult, bench
    from servetune.api.calibration import (
        Calibrate,
        CalibrationNames,
        DescribedDevice,
        KeptResult,
        SuggestedRuns,
        calibrate,
    )
    from servetune.api.checks import Checkup, Doctor, Finding, doctor
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
    from servetune.api.estimate_results import (
        Estimation,
        MachineComparison,
        Ranking,
        TablePrediction,
    )
    from servetune.api.estimation import Estimate, estimate
    from servetune.api.layout_study import ComparedLayouts, StudyLayouts, study_layouts
    from servetune.api.pages import Ui, serve_ui
    from servetune.api.request import Request, fields_of, schema
    from servetune.api.shared_options import Machine
    from servetune.api.simulated_comparison import SimulationComparison
    from servetune.api.simulation import (
        Simulation,
        SimulationProgress,
        SimulationResult,
        simulate,
    )
    from servetune.api.simulation_server import SimulationServer, serve_simulation
    from servetune.api.staging import Staging, StagingPlan, plan_staging, stage
    from servetune.api.study import PlannedServer, StudyResult, TrialDone, tune
    from servetune.api.study_request import Study
    from servetune.api.trials import (
        Pick,
        Recommend,
        Rent,
        Report,
        Reported,
        Trials,
        read,
        recommend,
        write_report,
    )
    from servetune.api.workloads import (
        Catalogue,
        FittedLog,
        WorkloadCheck,
        WorkloadDescription,
        Workloads,
        WorkloadSample,
        WorkloadsFit,
        WorkloadsSample,
        WorkloadsShow,
        WorkloadsValidate,
        fit_log,
        list_workloads,
        sample_workload,
        show_workload,
        validate_workload,
    )

__all__ = [
    "Apply",
    "Bench",
    "BenchLevels",
    "BenchResult",
    "BentomlDeployment",
    "Calibrate",
    "CalibrationNames",
    "Catalogue",
    "Checkup",
    "CommandDeployment",
    "ComparedLayouts",
    "ComposeDeployment",
    "Delete",
    "DescribedDevice",
    "Doctor",
    "EndpointChange",
    "EndpointStatus",
    "Estimate",
    "Estimation",
    "Finding",
    "FittedLog",
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
    "Rent",
    "Report",
    "Reported",
    "Request",
    "SageMakerDeployment",
    "ServiceDeployment",
    "Simulation",
    "SimulationComparison",
    "SimulationProgress",
    "SimulationResult",
    "SimulationServer",
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
    "Ui",
    "Update",
    "WorkloadCheck",
    "WorkloadDescription",
    "WorkloadSample",
    "Workloads",
    "WorkloadsFit",
    "WorkloadsSample",
    "WorkloadsShow",
    "WorkloadsValidate",
    "apply",
    "bench",
    "calibrate",
    "delete",
    "doctor",
    "estimate",
    "fields_of",
    "fit_log",
    "list_workloads",
    "logs",
    "orphans",
    "plan_staging",
    "read",
    "recommend",
    "render",
    "sample_workload",
    "schema",
    "serve_simulation",
    "serve_ui",
    "show_workload",
    "simulate",
    "stage",
    "status",
    "study_layouts",
    "tune",
    "update",
    "validate_workload",
    "write_report",
]

#: Module of this room -> names that it has.
_NAMES: Mapping[str, str] = {
    "bench_request": "Bench",
    "benchmark": "BenchLevels BenchResult bench",
    "calibration": "Calibrate CalibrationNames DescribedDevice KeptResult SuggestedRuns calibrate",
    "checks": "Checkup Doctor Finding doctor",
    "deployment": (
        "BentomlDeployment CommandDeployment ComposeDeployment KserveDeployment "
        "KubernetesDeployment Rendered RenderedEndpoint SageMakerDeployment "
        "ServiceDeployment SystemdDeployment render"
    ),
    "endpoints": (
        "Apply Delete EndpointChange EndpointStatus Logs Orphans Status Update apply "
        "delete logs orphans status update"
    ),
    "estimate_results": "Estimation MachineComparison Ranking TablePrediction",
    "estimation": "Estimate estimate",
    "layout_study": "ComparedLayouts StudyLayouts study_layouts",
    "pages": "Ui serve_ui",
    "request": "Request fields_of schema",
    "shared_options": "Machine",
    "simulated_comparison": "SimulationComparison",
    "simulation": "Simulation SimulationProgress SimulationResult simulate",
    "simulation_server": "SimulationServer serve_simulation",
    "staging": "Staging StagingPlan plan_staging stage",
    "study": "PlannedServer StudyResult TrialDone tune",
    "study_request": "Study",
    "workloads": (
        "Catalogue FittedLog WorkloadCheck WorkloadDescription WorkloadSample Workloads "
        "WorkloadsFit WorkloadsSample WorkloadsShow WorkloadsValidate fit_log list_workloads "
        "sample_workload show_workload validate_workload"
    ),
    "trials": "Pick Recommend Rent Report Reported Trials read recommend write_report",
}
#: Name -> module that has it.
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A name of the library, from the module that has it."""
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
