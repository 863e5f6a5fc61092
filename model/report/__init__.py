"""The report: results as one self-contained HTML page, for people."""

from pagetide.model.report.page import render_report, save_report

__all__ = ["render_report", "save_report"]
