"""A finding as the text of an issue: what happened, where, and code that shows it, or the plan to run again."""

import platform
import shlex
from importlib import metadata
from typing import Final

from fuzz.drawing import LEGEND
from fuzz.explain import explain
from fuzz.export.test import as_pytest
from fuzz.findings import ExportError, Finding
from fuzz.rendering import render
from fuzz.reports.as_markdown import plain_drawing
from oracle.scenario import dump_json, dumps

PACKAGES: Final = ("torch", "numpy", "vllm", "poolproof")


def as_issue(finding: Finding) -> str:
    """Markdown for a tracker."""
    told = explain(finding)
    code = plan = ""
    try:
        code = as_pytest(finding)
    except ExportError:
        # What goes before it in its process is kept with the finding alone.
        plan = dumps(finding.scenario) if finding.before is None else dump_json(finding.to_file())
    return render(
        "issue.md.j2",
        told=told,
        drawing=plain_drawing(finding),
        legend=LEGEND,
        environment=environment(),
        code=code,
        plan=plan,
        name="scenario.json" if finding.before is None else "finding.json",
        spec=shlex.quote(finding.spec) if finding.before is None else "",
    )


def environment() -> dict[str, str]:
    """Versions of what a result may depend on, as far as they are installed."""
    found = {
        "Python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
