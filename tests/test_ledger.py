"""The ledger: what is known is told as known, what is new as new, and what is out of date as an error."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fuzz.campaign import Budget, Report, fuzz
from fuzz.cli import main
from fuzz.ledger import Known, Witness, entries, read, shipped
from fuzz.reports.as_github import as_github
from fuzz.reports.as_junit import as_junit
from fuzz.reports.as_sarif import as_sarif
from impl.config import Subject
from impl.loading import load
from oracle.scenario import Request, Scenario, ScenarioError, Step
from tests import subjects
from tests.releases import release

CPU = torch.device("cpu")
TWO_CHUNKS = Scenario((Request("a", "token_embed", (1, 1)),), (Step((("a", 1),)), Step((("a", 1),))))


def known(subject: Subject, contract: str, **changes: Any) -> Known:
    fields = {"title": "t", "kind": "fault", "products": (subject.product,), "story": "s"}
    return Known("entry", witnesses=(Witness(contract, TWO_CHUNKS),), **(fields | changes))


def search(subject: Subject, ledger: Sequence[Known]) -> Report:
    return fuzz([subject], Budget(max_scenarios=300), 1, CPU, ledger=ledger)


def judged(slip: str, tmp_path: Path, *ledger: Known) -> Report:
    subject = load(subjects.write(tmp_path, slip))
    return search(subject, ledger)


@pytest.fixture
def forgetful(tmp_path: Path) -> Subject:
    return load(subjects.write(tmp_path, "loses chunks"))


def test_a_finding_that_an_entry_explains_is_told_as_known(tmp_path: Path, forgetful: Subject) -> None:
    report = judged("loses chunks", tmp_path, known(forgetful, "row-count", url="https://example.org/1"))
    assert [(finding.known, finding.url) for finding in report.findings] == [("entry", "https://example.org/1")]
    assert (report.verdict, report.exit_code) == ("violates", 1)
    report.allows_known = True
    assert (report.verdict, report.exit_code) == ("holds", 0)
    assert "<skipped" in as_junit(report)
    assert "<failure" not in as_junit(report)
    assert as_github(report).startswith("::notice ")
    assert [result["level"] for result in json.loads(as_sarif(report))["runs"][0]["results"]] == ["note"]


def test_what_no_entry_explains_is_new_and_counts(tmp_path: Path, forgetful: Subject) -> None:
    # The entry needs a chunked prompt; an output in another dtype needs nothing of the kind.
    entry = known(forgetful, "row-count")
    path = Path(subjects.write(tmp_path, "loses chunks").removesuffix(":factory"))
    text = path.read_text()
    path.write_text(text.replace("chunk.clone() if done", "chunk.double() if done"))
    assert path.read_text() != text
    report = search(load(f"{path}:factory"), [entry])
    report.allows_known = True
    told = {finding.contract: finding.known for finding in report.findings}
    assert told == {"row-count": "entry", "dtype-and-device": ""}
    assert report.exit_code == 1


def test_a_wider_fault_of_the_same_kind_is_not_excused(tmp_path: Path) -> None:
    mine = load(subjects.write(tmp_path, "rolls the rows"))
    entry = Known(
        "entry", "t", "fault", (mine.product,), "s",
        (Witness("values", Scenario((Request("a", "token_embed", (1, 1)), Request("b", "token_embed", (1,))),
                                    (Step((("a", 2), ("b", 1))),))),),
    )  # fmt: skip
    report = search(mine, [entry])
    assert {finding.known for finding in report.findings} == {""}


def test_an_entry_that_no_longer_reproduces_is_an_error(tmp_path: Path, forgetful: Subject) -> None:
    report = judged("", tmp_path, known(forgetful, "row-count"))
    assert report.exit_code == 2
    assert "the ledger is out of date: entry (t): " in report.error
    assert "shows holds, not row-count" in report.error


def test_an_entry_is_for_its_product_and_releases_alone(tmp_path: Path, forgetful: Subject) -> None:
    assert judged("", tmp_path, known(forgetful, "row-count", products=("other",))).exit_code == 0

    def covers(version: str, releases: str) -> bool:
        subject = Subject("x", lambda config, level: None, frozenset({"ALL"}), product="vllm", version=version)  # type: ignore[arg-type, return-value]
        return known(subject, "values", releases=releases).covers(subject)

    assert covers("0.20.2", ">=0.20,<0.21")
    assert covers("0.9.1", ">=0.9")
    assert not covers("0.10.0", "<=0.9.9")
    assert not covers("0.20.1", ">=0.13,!=0.20.*")
    assert not covers("", "<=0.33")
    assert covers("", ">=0.13")
    both = known(forgetful, "row-count", products=("other", forgetful.product))
    assert both.covers(forgetful)
    assert covers("0.34.0rc1", ">=0.13")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version 2"),
        ({"kind": "wish"}, "$.kind"),
        ({"releases": "newest"}, "'newest' is no version specifier"),
        ({"witnesses": []}, "$.witnesses"),
        ({"oops": 1}, "oops"),
    ],
)
def test_a_damaged_entry_is_named_with_the_field(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "entry.json"
    path.write_text(json.dumps(json.loads(Path("fuzz/known/step-two-placeholders.json").read_text()) | change))
    with pytest.raises(ScenarioError) as caught:
        list(entries(tmp_path))
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_what_is_accepted_is_known_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = subjects.write(tmp_path, "loses chunks")
    arguments = ["fuzz", "--subject", spec, "--max-scenarios", "200", "--seed", "1"]
    assert CliRunner().invoke(main, arguments).exit_code == 1
    finding = next((tmp_path / ".poolproof/findings").glob("*.json"))
    accepted = CliRunner().invoke(
        main, ["corpus", "accept", str(finding), "--name", "lost", "--url", "https://e.org/1"]
    )
    assert accepted.output == "known from now on: .poolproof/known/lost.json\n"
    assert read(tmp_path / ".poolproof/known/lost.json").url == "https://e.org/1"
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 1
    assert "known as: lost https://e.org/1" in told.output
    assert "1 finding, of which known: 1," in told.output
    assert CliRunner().invoke(main, [*arguments, "--known", "allow"]).exit_code == 0
    subjects.write(tmp_path)
    mended = CliRunner().invoke(main, [*arguments, "--known", "allow"])
    assert mended.exit_code == 2
    assert "the ledger is out of date: lost" in mended.output


def test_no_entry_that_ships_is_without_a_story_and_names_are_told_apart() -> None:
    ledger = shipped()
    assert len(ledger) > 15
    assert len({entry.name for entry in ledger}) == len(ledger)
    assert all(set(entry.products) <= {"vllm", "vllm-v1", "vllm-v2"} for entry in ledger)


@pytest.mark.releases
def test_a_checkout_in_which_a_known_failure_is_mended_is_told_so() -> None:
    subject = release("0.33.0")
    checkout = replace(subject, name="checkout", version="")
    entry = known(checkout, "row-count", products=("vllm",), releases=">=0.30")
    report = search(checkout, [entry])
    assert report.error == ""
    assert any("known of the newest release, but not here: entry" in note for note in report.notes)
