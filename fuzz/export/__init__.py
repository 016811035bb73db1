"""A finding for others: a standalone test, an issue for a tracker."""

from fuzz.export.issue import as_issue
from fuzz.export.test import as_pytest

__all__ = ["as_issue", "as_pytest"]
