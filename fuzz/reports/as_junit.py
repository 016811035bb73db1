"""JUnit XML, for test dashboards: a suite for each subject, a case for each contract."""

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from fuzz.campaign import Report
from fuzz.explain import headline
from fuzz.findings import Finding
from fuzz.reports.as_markdown import as_text
from oracle.contracts import all_contracts


def as_junit(report: Report) -> str:
    """The report as JUnit XML; what kept a run from a verdict is an error of a case of its own."""
    xml = JUnitXml("poolproof")
    for subject in report.subjects:
        suite = TestSuite(subject)
        for contract in all_contracts():
            broken = [own for own in report.findings if (own.subject, own.contract) == (subject, contract.name)]
            suite.add_testcase(_case(subject, contract.name, broken, report.allows_known))
        xml.add_testsuite(suite)
    doubts = [*report.doubts, *([report.error] if report.error else [])]
    if doubts:
        case = TestCase("run", "poolproof")
        case.result = [Error(doubt, report.verdict) for doubt in doubts]
        suite = TestSuite("poolproof")
        suite.add_testcase(case)
        xml.add_testsuite(suite)
    xml.time = report.elapsed_s
    text: bytes = xml.tostring()
    return text.decode()


def _case(subject: str, contract: str, broken: list[Finding], allows_known: bool) -> TestCase:
    case = TestCase(contract, subject)
    failures: list[FinalResult] = []
    for finding in broken:
        kind = Skipped if allows_known and finding.known else Failure
        failure = kind(headline(finding), finding.contract)
        failure.text = as_text(finding)
        failures.append(failure)
    case.result = failures
    return case
