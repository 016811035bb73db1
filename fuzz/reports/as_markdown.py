"""Markdown, for comments, summaries and wikis; and the plain text of one finding for the other forms."""

from fuzz.campaign import Report
from fuzz.drawing import LEGEND, draw
from fuzz.explain import explain, facts, headline
from fuzz.findings import Finding
from fuzz.rendering import render

WIDTH = 100


def as_markdown(report: Report) -> str:
    """The report as Markdown."""
    findings = [(explain(finding), plain_drawing(finding)) for finding in report.findings]
    return render("report.md.j2", report=report, told=findings, facts=facts, legend=LEGEND)


def as_text(finding: Finding) -> str:
    """What there is to say of a finding below its headline, in plain text."""
    about = explain(finding)
    lines = [*about.requests, f"options: {about.options}", "", *plain_drawing(finding).splitlines(), ""]
    return "\n".join([*lines, *(f"{name}: {text}" for name, text in facts(about))])


def told(finding: Finding) -> str:
    """All there is to say of a finding, in plain text, as the terminal says it."""
    return f"{headline(finding)}\n{finding.contract} is broken by {finding.subject}\n\n{as_text(finding)}"


def plain_drawing(finding: Finding) -> str:
    """The drawing of the scenario and of the wrong rows, without colour."""
    return "\n".join(line.plain.rstrip() for line in draw(explain(finding), WIDTH))
