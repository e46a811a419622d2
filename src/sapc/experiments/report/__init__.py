"""Make tables, pictures and a page from results.

    report = make_report(["runs/study"], "report")
    report.page      # report/index.html

Matplotlib and Jinja are imported only where something is drawn or a page is written.
"""

from __future__ import annotations

from .make import Report, make_report

__all__ = ["Report", "make_report"]
