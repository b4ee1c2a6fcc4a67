"""The report: one page that shows the verdicts of a profile, with the executed notebooks as pages beside it."""

from ident_utils.report.build import write_report

__all__ = ["write_report"]
