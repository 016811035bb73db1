"""Reports: each form says the same, parses as what it claims to be, and keeps what it is given from leaking out."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner, Result
from junitparser import JUnitXml

from fuzz.campaign import Budget, Report, fuzz
from fuzz.cli import main
from fuzz.explain import headline
from fuzz.reports.as_github import as_github
from fuzz.reports.as_html import as_html
from fuzz.reports.as_json import ReportForm, as_json
from fuzz.reports.as_junit import as_junit
from fuzz.reports.as_markdown import as_markdown
from fuzz.reports.as_sarif import as_sarif
from impl.loading import load
from oracle.contracts import all_contracts
from tests import subjects


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """How a run on a pooler with several faults ends."""
    spec = subjects.write(tmp_path_factory.mktemp("subject"), "hands out views")
    found = fuzz([load(spec)], Budget(max_scenarios=200), seed=1, device=torch.device("cpu"))
    assert found.findings
    found.doubts.append("one\ndoubt & more")
    return found


def test_json_is_what_its_schema_says(report: Report) -> None:
    told = msgspec.json.decode(as_json(report), type=ReportForm)
    assert told.verdict == "violates"
    assert [finding.scenario for finding in told.findings] == [finding.scenario for finding in report.findings]


def test_junit_has_a_suite_for_each_subject_and_a_case_for_each_contract(report: Report) -> None:
    xml = JUnitXml.fromstring(as_junit(report).encode())
    suites = {suite.name: suite for suite in xml}
    suite = suites[report.subjects[0]]
    failed = {case.name: case.result[0] for case in suite if case.result}
    assert [case.name for case in suite] == [contract.name for contract in all_contracts()]
    assert set(failed) == {finding.contract for finding in report.findings}
    assert failed[report.findings[0].contract].message == headline(report.findings[0])
    assert suites["poolproof"].errors == 1


def test_sarif_points_from_results_to_rules_and_sources(report: Report) -> None:
    log = json.loads(as_sarif(report))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == len(all_contracts())
    assert not run["invocations"][0]["executionSuccessful"]
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.contract
        assert result["message"]["text"].startswith(headline(finding))
        place = result["locations"][0]["physicalLocation"]
        path = place["artifactLocation"]["uri"].removeprefix("file://")
        assert "def pool" in Path(path).read_text().splitlines()[place["region"]["startLine"] - 1]


@pytest.mark.skipif(
    "SARIF_SCHEMA" not in os.environ, reason="`tox -e sarif` fetches the schema of SARIF 2.1.0 and names it"
)
@pytest.mark.parametrize("known", ["", "an entry"])
@pytest.mark.parametrize("allows_known", [False, True])
def test_sarif_is_what_its_own_schema_says(report: Report, known: str, allows_known: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(os.environ["SARIF_SCHEMA"]).read_text())
    url = "https://example.org/1" if known else ""
    findings = [replace(finding, known=known, url=url) for finding in report.findings]
    log = json.loads(as_sarif(replace(report, findings=findings, allows_known=allows_known, error=known)))
    jsonschema.validate(log, schema)
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, schema)


def test_github_annotations_take_a_line_each(report: Report) -> None:
    lines = as_github(report).splitlines()
    assert len(lines) == len(report.findings) + 1
    assert lines[0].startswith(f"::error file={report.findings[0].place.rpartition(':')[0]},line=")
    assert headline(report.findings[0]) + "%0A" in lines[0]
    assert lines[-1] == "::warning title=poolproof::one%0Adoubt & more"


def test_markdown_tells_each_finding(report: Report) -> None:
    text = as_markdown(report)
    assert text.startswith("# Poolproof: violates\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {headline(finding)}" for finding in report.findings
    ]


def test_the_page_asks_for_nothing_from_elsewhere_and_escapes_what_it_is_given(report: Report) -> None:
    evil = replace(report.findings[0], subject="<script>alert(1)</script>")
    page = as_html(replace(report, findings=[evil], subjects=[evil.subject], doubts=["a < b & c"]))
    assert "<script>alert" not in page
    assert "a &lt; b &amp; c" in page
    assert not [tag for tag in ("src=", "href=", "@import", "url(", "http://", "https://") if tag in page]
    assert page.count("<svg") == 1 + (evil.blame is not None)


def test_a_page_of_two_hundred_findings_stays_small(report: Report) -> None:
    many = [report.findings[place % len(report.findings)] for place in range(200)]
    assert len(as_html(replace(report, findings=many))) < 5_000_000


def test_a_run_without_findings_is_told_in_every_form() -> None:
    clean = Report(["sliced"], 1, scenarios=3, comparisons=9, mix=Counter(), elapsed_s=0.0)
    assert "holds" in as_html(clean)
    assert as_markdown(clean).startswith("# Poolproof: holds")
    assert as_github(clean) == ""
    assert json.loads(as_sarif(clean))["runs"][0]["results"] == []
    assert JUnitXml.fromstring(as_junit(clean).encode()).failures == 0


def poolproof(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_reports_are_written_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run = ["fuzz", "--subject", "sliced", "--max-scenarios", "30", "--seed", "1", "--save", tmp_path]
    result = poolproof(*run, "--report", f"html={tmp_path}/page.html", "--report", f"github={tmp_path}/lines.txt")
    assert result.exit_code == 0, result.output
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "lines.txt").read_text() == ""
    assert summary.read_text().startswith("# Poolproof: holds")
    assert f"html report: {tmp_path}/page.html" in result.output


def test_a_report_that_can_not_be_written_is_an_error_and_the_findings_are_told(tmp_path: Path) -> None:
    spec = subjects.write(tmp_path, "loses chunks")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    run = ["fuzz", "--subject", spec, "--max-scenarios", "60", "--seed", "1", "--save", tmp_path / "kept"]
    result = poolproof(*run, "--report", f"html={blocked}/page.html")
    assert result.exit_code == 2
    assert "its chunk of step 0 is missing" in result.output
    assert "the html report can't be written" in result.stderr


def test_an_unknown_form_is_refused_before_anything_runs() -> None:
    result = poolproof("fuzz", "--report", "pdf")
    assert result.exit_code == 2
    assert "'pdf' is no form of report; say one of html, junit, sarif, github, json, markdown" in result.stderr
