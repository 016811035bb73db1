"""The forms of a report by name, and where they go."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fuzz.campaign import Report
from fuzz.findings import write_atomically
from fuzz.reports.as_github import as_github
from fuzz.reports.as_html import as_html
from fuzz.reports.as_json import as_json
from fuzz.reports.as_junit import as_junit
from fuzz.reports.as_markdown import as_markdown
from fuzz.reports.as_sarif import as_sarif

FORMS: Final[dict[str, Callable[[Report], str]]] = {
    "html": as_html,
    "junit": as_junit,
    "sarif": as_sarif,
    "github": as_github,
    "json": as_json,
    "markdown": as_markdown,
}


def write(form: str, report: Report, path: Path) -> None:
    """Write a report, whole or not at all; GitHub's goes to its job summary besides.

    Raises:
        OSError: it can't be written.
    """
    write_atomically(path, FORMS[form](report))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if form == "github" and summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(as_markdown(report))
