"""The dashboard: one self-contained HTML file that works offline."""

from servetune.report.dashboard.page import dashboard_html, page_data_in, page_json, timeline_in

__all__ = ["dashboard_html", "page_data_in", "page_json", "timeline_in"]
