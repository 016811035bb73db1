"""A finding as the text of an issue: what happened, where, and code that shows it."""

import platform
from importlib import metadata
from typing import Final

from fuzz.drawing import LEGEND, draw
from fuzz.explain import explain
from fuzz.export.template import render
from fuzz.export.test import as_pytest
from fuzz.findings import ExportError, Finding

WIDTH: Final = 100
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


def plain_drawing(finding: Finding) -> str:
    """The drawing of the scenario and of the wrong rows, as text without colour."""
    return "\n".join(line.plain.rstrip() for line in draw(explain(finding), WIDTH))


def environment() -> dict[str, str]:
    """Versions of what a result may depend on, as far as they are installed."""
    found = {"Python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
