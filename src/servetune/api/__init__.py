"""The library: one request and one function for each verb; `import servetune` is this room.

Names are looked up when they are used, so that a command imports what it needs and no more.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servetune.api.agent_server import Mcp
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
    from servetune.api.comparing import Compare, Compared, compare
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
    from servetune.api.executing import what_executes
    from servetune.api.explaining import Explain, Explanation, explain
    from servetune.api.fleet_results import FleetDay, FleetLevel, FleetPlan
    from servetune.api.fleet_sizing import Fleet, fleet
    from servetune.api.following import Follow, RunProgress, StopRun, follow, stop
    from servetune.api.layout_study import ComparedLayouts, StudyLayouts, study_layouts
    from servetune.api.mlflow_logging import MlflowLogger, mlflow_logger
    from servetune.api.pages import Ui, serve_ui
    from servetune.api.registry import (
        DeploymentList,
        ListDeployments,
        RegisterDeployment,
        Registered,
        list_deployments,
        register_deployment,
    )
    from servetune.api.request import Request, fields_of, schema
    from servetune.api.runs import (
        ListRuns,
        RebuildRuns,
        Rebuilt,
        RemoveRun,
        RunDetails,
        RunList,
        ShowRun,
        TagRun,
        list_runs,
        rebuild_runs,
        remove_run,
        show_run,
        tag_run,
    )
    from servetune.api.runs_export import ExportedRuns, ExportRuns, export_runs
    from servetune.api.runs_sql import QueryAnswer, QueryRuns, query_runs
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
    from servetune.api.study_time import PlannedTime, planned_time
    from servetune.api.trial_pages import ListTrials, TrialPage, list_trials
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
    "Compare",
    "Compared",
    "ComparedLayouts",
    "ComposeDeployment",
    "Delete",
    "DeploymentList",
    "DescribedDevice",
    "Doctor",
    "EndpointChange",
    "EndpointStatus",
    "Estimate",
    "Estimation",
    "Explain",
    "Explanation",
    "ExportRuns",
    "ExportedRuns",
    "Finding",
    "FittedLog",
    "Fleet",
    "FleetDay",
    "FleetLevel",
    "FleetPlan",
    "Follow",
    "KeptResult",
    "KserveDeployment",
    "KubernetesDeployment",
    "ListDeployments",
    "ListRuns",
    "ListTrials",
    "Logs",
    "Machine",
    "MachineComparison",
    "Mcp",
    "MlflowLogger",
    "Orphans",
    "Pick",
    "PlannedServer",
    "PlannedTime",
    "QueryAnswer",
    "QueryRuns",
    "Ranking",
    "RebuildRuns",
    "Rebuilt",
    "Recommend",
    "RegisterDeployment",
    "Registered",
    "RemoveRun",
    "Rendered",
    "RenderedEndpoint",
    "Rent",
    "Report",
    "Reported",
    "Request",
    "RunDetails",
    "RunList",
    "RunProgress",
    "SageMakerDeployment",
    "ServiceDeployment",
    "ShowRun",
    "Simulation",
    "SimulationComparison",
    "SimulationProgress",
    "SimulationResult",
    "SimulationServer",
    "Staging",
    "StagingPlan",
    "Status",
    "StopRun",
    "Study",
    "StudyLayouts",
    "StudyResult",
    "SuggestedRuns",
    "SystemdDeployment",
    "TablePrediction",
    "TagRun",
    "TrialDone",
    "TrialPage",
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
    "compare",
    "delete",
    "doctor",
    "estimate",
    "explain",
    "export_runs",
    "fields_of",
    "fit_log",
    "fleet",
    "follow",
    "list_deployments",
    "list_runs",
    "list_trials",
    "list_workloads",
    "logs",
    "mlflow_logger",
    "orphans",
    "plan_staging",
    "planned_time",
    "query_runs",
    "read",
    "rebuild_runs",
    "recommend",
    "register_deployment",
    "remove_run",
    "render",
    "sample_workload",
    "schema",
    "serve_simulation",
    "serve_ui",
    "show_run",
    "show_workload",
    "simulate",
    "stage",
    "status",
    "stop",
    "study_layouts",
    "tag_run",
    "tune",
    "update",
    "validate_workload",
    "what_executes",
    "write_report",
]

#: Module of this room -> names that it has.
_NAMES: Mapping[str, str] = {
    "agent_server": "Mcp",
    "bench_request": "Bench",
    "benchmark": "BenchLevels BenchResult bench",
    "calibration": "Calibrate CalibrationNames DescribedDevice KeptResult SuggestedRuns calibrate",
    "checks": "Checkup Doctor Finding doctor",
    "comparing": "Compare Compared compare",
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
    "executing": "what_executes",
    "explaining": "Explain Explanation explain",
    "following": "Follow RunProgress StopRun follow stop",
    "fleet_results": "FleetDay FleetLevel FleetPlan",
    "fleet_sizing": "Fleet fleet",
    "layout_study": "ComparedLayouts StudyLayouts study_layouts",
    "mlflow_logging": "MlflowLogger mlflow_logger",
    "pages": "Ui serve_ui",
    "registry": (
        "DeploymentList ListDeployments RegisterDeployment Registered list_deployments "
        "register_deployment"
    ),
    "request": "Request fields_of schema",
    "runs": (
        "ListRuns RebuildRuns Rebuilt RemoveRun RunDetails RunList ShowRun TagRun list_runs "
        "rebuild_runs remove_run show_run tag_run"
    ),
    "runs_export": "ExportRuns ExportedRuns export_runs",
    "runs_sql": "QueryAnswer QueryRuns query_runs",
    "shared_options": "Machine",
    "simulated_comparison": "SimulationComparison",
    "simulation": "Simulation SimulationProgress SimulationResult simulate",
    "simulation_server": "SimulationServer serve_simulation",
    "staging": "Staging StagingPlan plan_staging stage",
    "study": "PlannedServer StudyResult TrialDone tune",
    "study_request": "Study",
    "study_time": "PlannedTime planned_time",
    "trial_pages": "ListTrials TrialPage list_trials",
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
