"""Reports of a run: JSON summary, terminal tables and dashboard."""

from servetune.report.answer_tables import answer_cell, answer_table, answer_text
from servetune.report.bench import bench_table, trial_table
from servetune.report.catalogue_tables import (
    deployments_table,
    run_facts_text,
    run_trials_table,
    runs_table,
)
from servetune.report.chart import front_chart
from servetune.report.comparison import (
    PredictionPair,
    median_errors,
    pairs_between,
    pairs_within,
    quantity_errors,
)
from servetune.report.dashboard import dashboard_html, page_data_in, page_json, timeline_in
from servetune.report.digest import Digest, digest_of, digest_of_pick
from servetune.report.estimate_page import EstimateHeading, estimate_page
from servetune.report.inline import digest_html, table_html, text_html
from servetune.report.levels import levels_table
from servetune.report.machines import MachineCost, cheapest_first
from servetune.report.markdown import digest_markdown
from servetune.report.page_data import Live, PageData, page_data
from servetune.report.prices import price_lines
from servetune.report.ranking import (
    candidates_of,
    check_constraints,
    label_of,
    picks,
    ranked,
    results_of,
    varying,
)
from servetune.report.replicas import ReplicaRow, replica_rows, replica_table
from servetune.report.roofline import (
    BandPoint,
    Curve,
    Dot,
    Phase,
    Roof,
    RooflineFigure,
    StepBar,
    StepSlice,
)
from servetune.report.suggestions import suggestions
from servetune.report.summary import (
    choice_json,
    records_from_summary,
    search_in_summary,
    summary,
    summary_json,
    summary_pieces,
)
from servetune.report.tables import (
    as_text,
    comparison_table,
    console,
    pairs_table,
    ranking_table,
    recommendation_text,
    simulated_notice,
)
from servetune.report.timeline import timeline_of

__all__ = [
    "BandPoint",
    "Curve",
    "Digest",
    "Dot",
    "EstimateHeading",
    "Live",
    "MachineCost",
    "PageData",
    "Phase",
    "PredictionPair",
    "ReplicaRow",
    "Roof",
    "RooflineFigure",
    "StepBar",
    "StepSlice",
    "answer_cell",
    "answer_table",
    "answer_text",
    "as_text",
    "bench_table",
    "candidates_of",
    "cheapest_first",
    "check_constraints",
    "choice_json",
    "comparison_table",
    "console",
    "dashboard_html",
    "deployments_table",
    "digest_html",
    "digest_markdown",
    "digest_of",
    "digest_of_pick",
    "estimate_page",
    "front_chart",
    "label_of",
    "levels_table",
    "median_errors",
    "page_data",
    "page_data_in",
    "page_json",
    "pairs_between",
    "pairs_table",
    "pairs_within",
    "picks",
    "price_lines",
    "quantity_errors",
    "ranked",
    "ranking_table",
    "recommendation_text",
    "records_from_summary",
    "replica_rows",
    "replica_table",
    "results_of",
    "run_facts_text",
    "run_trials_table",
    "runs_table",
    "search_in_summary",
    "simulated_notice",
    "suggestions",
    "summary",
    "summary_json",
    "summary_pieces",
    "table_html",
    "text_html",
    "timeline_in",
    "timeline_of",
    "trial_table",
    "varying",
]
