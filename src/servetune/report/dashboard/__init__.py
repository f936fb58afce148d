"""The dashboard: one self-contained HTML file that works offline."""

from servetune.report.dashboard.page import dashboard_html

__all__ = ["dashboard_html"]
