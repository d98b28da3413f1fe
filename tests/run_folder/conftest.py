"""The made-up runs of the report's tests."""

from tests.report.conftest import long_folder, long_run, make_run

__all__ = ["long_folder", "long_run", "make_run"]
