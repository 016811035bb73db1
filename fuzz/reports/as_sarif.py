"""SARIF 2.1.0, for code scanning: contracts as rules, findings as results at the subject's source.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import json
from pathlib import Path
from typing import Any, Final

from fuzz.campaign import Report
from fuzz.cause import fingerprint
from fuzz.explain import explain
from fuzz.findings import Finding
from fuzz.reports.as_markdown import as_text
from oracle.contracts import Contract, all_contracts

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: Report) -> str:
    """The report as a SARIF log of one run."""
    contracts = all_contracts()
    places = {contract.name: place for place, contract in enumerate(contracts)}
    notes = [*report.doubts, *([report.error] if report.error else [])]
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "poolproof", "rules": [_rule(contract) for contract in contracts]}},
                "invocations": [
                    {
                        "executionSuccessful": not notes,
                        "toolExecutionNotifications": [{"level": "error", "message": {"text": note}} for note in notes],
                    }
                ],
                "results": [
                    _result(finding, places[finding.contract], report.allows_known and bool(finding.known))
                    for finding in report.findings
                ],
            }
        ],
    }
    return json.dumps(log, indent=1) + "\n"


def _rule(contract: Contract[Any]) -> dict[str, Any]:
    return {
        "id": contract.name,
        "shortDescription": {"text": contract.rule},
        "fullDescription": {"text": f"{contract.why} Without it: {contract.without}"},
        "defaultConfiguration": {"level": "error"},
        "properties": {"phase": contract.phase},
    }


def _result(finding: Finding, rule: int, allowed: bool) -> dict[str, Any]:
    told = explain(finding)
    path, _, line = finding.place.rpartition(":")
    where: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.subject, "kind": "module"}]}
    if path:
        uri = Path(path).as_uri() if Path(path).is_absolute() else Path(path).as_posix()
        where["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": {"startLine": int(line)}}
    return {
        "ruleId": finding.contract,
        "ruleIndex": rule,
        "level": "note" if allowed else "error",
        "baselineState": "unchanged" if finding.known else "new",
        "message": {"text": f"{told.headline}\n\n{as_text(finding)}"},
        "locations": [where],
        "occurrenceCount": finding.count,
        "workItemUris": [finding.url] if finding.url else [],
        "partialFingerprints": {"poolproof/v1": fingerprint(finding.scenario)},
    }
