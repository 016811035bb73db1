"""What the check finds on each vLLM release, release by contract, with what is known of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fuzz.campaign import Listener
from fuzz.check_each import INSTEAD, check
from fuzz.explain import explain, headline
from fuzz.findings import Finding
from fuzz.ledger import Known
from fuzz.rendering import render
from impl.config import Lack
from impl.loading import load
from oracle.contracts import Contract, all_contracts
from oracle.device.named import named
from oracle.device.ops import NAME as SIMULATED

RELEASES: Final = (
    "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0",
    "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0",
    "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0",
    "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
"""The releases that load."""

Status = Literal["holds", "violates", "not applicable"]

_OF_WAITS: Final = ("sync-budget", "waits-do-not-grow")
"""Contracts that only a device, real or simulated, can break."""
_ASKS_FOR: Final[dict[str, Lack]] = {
    "outputs-own-their-rows": "async-scheduling",
    "state-owns-its-rows": "chunked-token-tasks",
    "state-is-bounded": "chunked-token-tasks",
    "state-cleared": "chunked-token-tasks",
    "state-is-fresh-at-the-start": "chunked-token-tasks",
}
"""Contracts that mean nothing for a release that lacks something."""


@dataclass
class Judged:
    """A release and what was found on it."""

    version: str
    lacks: frozenset[Lack]
    findings: list[Finding] = field(default_factory=list)

    def status(self, contract: str) -> Status:
        """What became of a contract."""
        if _ASKS_FOR.get(contract) in self.lacks:
            return "not applicable"
        return "violates" if any(finding.contract == contract for finding in self.findings) else "holds"


@dataclass(frozen=True)
class Row:
    """One failure, and the releases that have it; the smallest scenario of the last of these."""

    versions: tuple[str, ...]
    finding: Finding
    known: Known | None

    @property
    def range(self) -> str:
        """The releases, for people."""
        return spans(self.versions)


@dataclass
class Survey:
    """The verdicts on several releases."""

    releases: list[Judged]
    contracts: list[Contract[Any]]
    ledger: Sequence[Known]
    errors: list[str] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """The failures, those of the earliest releases first; what the ledger doesn't have comes one by one."""
        seen: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
        for release in self.releases:
            for finding in release.findings:
                key = (finding.known,) if finding.known else (release.version, finding.name)
                seen.setdefault(key, []).append((release.version, finding))
        known = {entry.name: entry for entry in self.ledger}
        return [
            Row(
                tuple(dict.fromkeys(version for version, _ in shown)),
                min((finding for version, finding in shown if version == shown[-1][0]), key=lambda own: own.size),
                known.get(key[0]),
            )
            for key, shown in seen.items()
        ]

    @property
    def exit_code(self) -> int:
        """0: all that is found is known. 1: something is new. 2: something could not be judged."""
        if self.errors:
            return 2
        return int(any(not finding.known for release in self.releases for finding in release.findings))

    def columns(self) -> list[tuple[str, list[Status]]]:
        """Neighbouring releases with the same verdicts, and these, contract by contract."""
        grouped: list[tuple[list[str], list[Status]]] = []
        for release in self.releases:
            column = [release.status(contract.name) for contract in self.contracts]
            if grouped and grouped[-1][1] == column:
                grouped[-1][0].append(release.version)
            else:
                grouped.append(([release.version], column))
        return [(spans(versions), column) for versions, column in grouped]

    def to_builtins(self) -> dict[str, Any]:
        """The survey as plain data."""
        return {
            "version": 1,
            "errors": self.errors,
            "releases": [
                {
                    "release": release.version,
                    "lacks": sorted(release.lacks),
                    "contracts": {contract.name: release.status(contract.name) for contract in self.contracts},
                    "findings": [finding.to_builtins() for finding in release.findings],
                }
                for release in self.releases
            ],
        }

    def as_markdown(self) -> str:
        """The survey as a page."""
        return render("releases.md.j2", survey=self, explain=explain, headline=headline)


def survey(versions: Sequence[str], ledger: Sequence[Known], listener: Listener) -> Survey:
    """Run `poolproof check` on each release, on the CPU and on the simulated device.

    Raises:
        SubjectError: a release can't be had.
    """
    judged = {f"vllm=={version}": Judged(version, load(f"vllm=={version}").lacks) for version in versions}
    contracts = [own for own in all_contracts() if not own.check.__module__.endswith(".engine")]
    result = Survey(list(judged.values()), contracts, ledger)
    for device in ("cpu", SIMULATED):
        report = check(list(judged), named(device), None, listener, ledger=ledger)
        result.errors += [text for text in (report.error, *report.doubts) if text]
        result.errors += [note for note in report.notes if note.endswith(INSTEAD)]
        for finding in report.findings:
            if (finding.contract in _OF_WAITS) == (device == SIMULATED):
                judged[finding.subject].findings.append(finding)
    return result


def spans(versions: Sequence[str]) -> str:
    """Releases as ranges of neighbours: `0.11.0 to 0.13.0, 0.21.0`."""
    return ", ".join(f"{first} to {last}" if first != last else first for first, last in _runs(versions))


def _runs(versions: Sequence[str]) -> Iterator[tuple[str, str]]:
    order = list(RELEASES)
    first = last = versions[0]
    for version in versions[1:]:
        if order.index(version) != order.index(last) + 1:
            yield first, last
            first = version
        last = version
    yield first, last
