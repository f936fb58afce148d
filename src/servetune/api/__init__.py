"""The library: one request and one function for each verb; `import servetune` is this room."""

from servetune.api.bench import BenchResult, bench
from servetune.api.bench_request import Bench
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
