"""The dashboard: one self-contained HTML file that works offline."""

from servetune.report.dashboard.page import dashboard_html, embedded, timeline_in

__all__ = ["dashboard_html", "embedded", "timeline_in"]
