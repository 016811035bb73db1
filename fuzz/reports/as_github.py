"""Workflow commands of GitHub Actions: an annotation for each finding, at the subject's source.

Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from fuzz.campaign import Report
from fuzz.explain import headline
from fuzz.findings import Finding
from fuzz.reports.as_markdown import as_text


def as_github(report: Report) -> str:
    """The report as lines that a workflow's log turns into annotations."""
    lines = [_annotation(finding, report.allows_known) for finding in report.findings]
    lines += [f"::warning title=poolproof::{_data(doubt)}" for doubt in report.doubts]
    lines += [f"::error title=poolproof::{_data(report.error)}"] if report.error else []
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding, allows_known: bool) -> str:
    level = "notice" if allows_known and finding.known else "error"
    path, _, line = finding.place.rpartition(":")
    where = f"file={_property(path)},line={line}," if path else ""
    title = f"{finding.contract} is broken by {finding.subject}"
    return f"::{level} {where}title={_property(title)}::{_data(headline(finding) + chr(10) + as_text(finding))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
