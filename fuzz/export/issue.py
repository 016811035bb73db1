"""A finding as the text of an issue: what happened, where, and code that shows it."""

import platform
from importlib import metadata
from typing import Final

from fuzz.drawing import LEGEND
from fuzz.explain import explain
from fuzz.export.test import as_pytest
from fuzz.findings import ExportError, Finding
from fuzz.rendering import render
from fuzz.reports.as_markdown import plain_drawing

PACKAGES: Final = ("torch", "numpy", "vllm", "poolproof")


def as_issue(finding: Finding) -> str:
    """Markdown for a tracker."""
    told = explain(finding)
    try:
        code = as_pytest(finding)
    except ExportError:
        code = ""
    return render(
        "issue.md.j2",
        told=told,
        drawing=plain_drawing(finding),
        legend=LEGEND,
        environment=environment(),
        code=code,
    )


def environment() -> dict[str, str]:
    """Versions of what a result may depend on, as far as they are installed."""
    found = {"Python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
