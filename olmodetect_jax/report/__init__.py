"""The report: one self-contained HTML page."""

from olmodetect_jax.report.page import write_report

__all__ = ["write_report"]
