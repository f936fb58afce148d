"""What a run found, for people and for scripts: summary, tables and dashboard."""

from servetune.report.bench import bench_table
from servetune.report.comparison import (
    Gap,
    Pair,
    gaps_of,
    median_errors,
    pairs_between,
    pairs_within,
)
from servetune.report.dashboard import dashboard_html
from servetune.report.figures import page_data
from servetune.report.hints import suggestions
from servetune.report.ranking import (
    Standing,
    Varying,
    candidates_of,
    label_of,
    picks,
    ranked,
    standing_of,
    varying,
)
from servetune.report.replicas import ReplicaRow, replica_rows, replica_table
from servetune.report.roofline import (
    BandPoint,
    Curve,
    Dot,
    Roof,
    RooflineFigure,
    StepBar,
    StepSlice,
    roofline_html,
    roofline_svg,
)
from servetune.report.summary import (
    records_from_summary,
    simulated_share,
    summary,
    summary_json,
)
from servetune.report.tables import (
    comparison_table,
    console,
    pairs_table,
    ranking_table,
    recommendation_text,
    simulated_line,
)
from servetune.report.timeline import timeline_of
from servetune.report.trial import trial_table

__all__ = [
    "BandPoint",
    "Curve",
    "Dot",
    "Gap",
    "Pair",
    "ReplicaRow",
    "Roof",
    "RooflineFigure",
    "Standing",
    "StepBar",
    "StepSlice",
    "Varying",
    "bench_table",
    "candidates_of",
    "comparison_table",
    "console",
    "dashboard_html",
    "gaps_of",
    "label_of",
    "median_errors",
    "page_data",
    "pairs_between",
    "pairs_table",
    "pairs_within",
    "picks",
    "ranked",
    "ranking_table",
    "recommendation_text",
    "records_from_summary",
    "replica_rows",
    "replica_table",
    "roofline_html",
    "roofline_svg",
    "simulated_line",
    "simulated_share",
    "standing_of",
    "suggestions",
    "summary",
    "summary_json",
    "timeline_of",
    "trial_table",
    "varying",
]
