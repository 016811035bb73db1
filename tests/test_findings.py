"""One cause is told once, two are told as two; the smallest first, with counts, kept as files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.campaign import Budget, Report, fuzz
from fuzz.cause import Cause
from fuzz.check import check_one
from fuzz.findings import MAX_ALIKE, Finding, Findings
from impl.config import Outputs, PoolerConfig, Subject
from impl.hostsplit import HostSplit
from impl.pooler import Pooler
from oracle.scenario import Options, Request, Scenario, Step

CPU = torch.device("cpu")

Rows = list[torch.Tensor | None]


def search(
    *slips: Callable[[Rows, Any], Rows], serves: tuple[str, ...] = ("ALL",), levels: Any = ("method",)
) -> Report:
    """What is found on a right pooler whose results then go through each slip in turn."""

    class Slipping(HostSplit):
        def method(self, pooling_type: str) -> Any:
            right = super().method(pooling_type)

            def pool(hidden_states: torch.Tensor, metadata: Any) -> Outputs:
                outputs = list(right(hidden_states, metadata))
                for slip in slips:
                    outputs = slip(outputs, metadata)
                return outputs

            return pool

    def build(config: PoolerConfig, level: object) -> Any:
        methods = Slipping(config)
        return Pooler(config, methods) if level == "pooler" else methods.method(config.pooling_type)

    subject = Subject("slipping", build, supports=frozenset(serves), levels=levels)
    return fuzz([subject], Budget(max_scenarios=2000), seed=1, device=CPU)


def lose_a_row_of_long_prompts(outputs: Rows, metadata: Any) -> Rows:
    return [rows if rows is None or len(rows) < 4 else rows[:-1] for rows in outputs]


def swap_neighbours_in_threes(outputs: Rows, metadata: Any) -> Rows:
    if len(outputs) > 2 and outputs[0] is not None and outputs[1] is not None:
        outputs[:2] = outputs[1::-1]
    return outputs


def raise_on_threes(outputs: Rows, metadata: Any) -> Rows:
    if len(outputs) > 2:
        raise IndexError(f"{len(outputs)} are too many")
    return outputs


def widen_long_prompts(outputs: Rows, metadata: Any) -> Rows:
    return [rows if rows is None or len(rows) < 4 else rows.double() for rows in outputs]


def test_one_fault_that_shows_in_many_ways_is_told_once() -> None:
    report = search(lambda outputs, _: [rows if rows is None else rows[1:] for rows in outputs])
    assert [finding.contract for finding in report.findings] == ["row-count"]
    assert report.findings[0].count > 100


def test_two_faults_of_one_kind_are_told_as_two() -> None:
    report = search(lose_a_row_of_long_prompts, swap_neighbours_in_threes)
    told = [(len(finding.scenario.requests), finding.scenario.requests[0].prompt_len) for finding in report.findings]
    # The one takes a prompt of four tokens, the other three requests.
    assert told == [(1, 4), (3, 1)]
    assert sum(finding.count for finding in report.findings) == report.verdicts["violates"]


def test_two_faults_of_different_kinds_are_told_as_two() -> None:
    report = search(swap_neighbours_in_threes, widen_long_prompts)
    assert sorted(finding.contract for finding in report.findings) == ["dtype-and-device", "values"]


def test_a_fault_of_a_method_is_not_told_again_of_the_whole_pooler() -> None:
    report = search(lose_a_row_of_long_prompts, levels=("method", "pooler"))
    assert [finding.scenario.options.level for finding in report.findings] == ["method"]


def test_what_is_raised_at_one_line_is_told_once() -> None:
    report = search(raise_on_threes, serves=("ALL", "LAST", "CLS"))
    assert [finding.verdict for finding in report.findings] == ["crashes"]
    assert report.findings[0].place.startswith("tests/test_findings.py:")


def test_what_is_raised_at_one_line_under_several_pooling_types_is_told_at_once() -> None:
    told: list[Finding] = []
    findings = Findings(None)
    for number in range(6):
        kind = ("ALL", "STEP")[number % 2]
        finding, own = made({f"feature {9 - number}"}, 2)
        own = replace(own, symptom="accepts-valid-input", pooling_type=kind, raised_at="mine.py:3")
        found = findings.add(own, lambda finding=finding, own=own: (finding, own))  # type: ignore[misc]
        told += [found] if found is not None else []
    assert len(told) == 1
    assert [finding.count for finding in findings] == [6]


def test_a_fault_behind_views_of_the_buffer_is_told_too() -> None:
    class KeepsViewsAndSwaps(HostSplit):
        """Keeps views, and joins three chunks or more in the wrong order."""

        def pool_all(self, hidden_states: torch.Tensor, metadata: Any) -> Rows:
            cursor = metadata.get_pooling_cursor()
            outputs: Rows = []
            chunks = hidden_states.split_with_sizes(cursor.num_scheduled_tokens_cpu.tolist())
            for state, chunk, done in zip(metadata.pooling_states, chunks, cursor.get_finished_mask(), strict=True):
                kept = state.hidden_states_cache
                kept.append(chunk)
                outputs.append(torch.cat(kept[:1] + kept[:0:-1]) if done else None)
                if done:
                    state.clean()
            return outputs

    subject = Subject("keeps views", lambda config, _: KeepsViewsAndSwaps(config).pool_all, frozenset({"ALL"}))
    report = fuzz([subject], Budget(max_scenarios=500), seed=1, device=CPU)
    told = {finding.contract: finding for finding in report.findings}
    assert set(told) == {"state-owns-its-rows", "values"}
    assert len(told["state-owns-its-rows"].scenario.steps) == 1
    assert len(told["values"].scenario.steps) == 3
    walked = check_one(subject, CPU, None, lambda event: None)
    assert {finding.contract for finding in walked.findings} == set(told)
    assert "19,019 transitions" in walked.notes[0]


@pytest.mark.parametrize(
    ("change", "explained"),
    [
        ({}, True),
        ({"needs": frozenset({"two chunks", "async"})}, True),
        ({"needs": frozenset({"async"})}, False),
        ({"pooling_type": "LAST"}, False),
        ({"symptom": "state-cleared"}, False),
        ({"subject": "other"}, False),
        ({"raised_at": "mine.py:3"}, False),
    ],
)
def test_a_failure_is_explained_by_a_cause_that_needs_no_more(change: dict[str, Any], explained: bool) -> None:
    known = Cause("mine", "wrong rows", "ALL", "", frozenset({"two chunks"}))
    assert known.explains(replace(known, **change)) is explained


def made(needs: set[str], tokens: int) -> tuple[Finding, Cause]:
    scenario = Scenario((Request("a", "token_embed", (1,) * tokens),), (Step((("a", tokens),)),), Options())
    finding = Finding("mine", "values", "violates", "ALL", "wrong", scenario)
    return finding, Cause("mine", "wrong rows", "ALL", "", frozenset(needs))


def test_a_smaller_finding_replaces_those_it_explains_with_their_files_and_counts(tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    for needs, tokens in (({"async", "padding"}, 5), ({"preempted"}, 4), ({"async"}, 2), ({"async"}, 3)):
        findings.add(made(needs, tokens)[1], lambda needs=needs, tokens=tokens: made(needs, tokens))  # type: ignore[misc]
    findings.finish()
    assert [(own.scenario.requests[0].prompt_len, own.count) for own in findings] == [(2, 3), (4, 1)]
    files = {path.name: json.loads(path.read_text())["count"] for path in tmp_path.iterdir()}
    assert files == {Path(str(own.file)).name: own.count for own in findings}


def test_failures_that_never_fail_alike_do_not_flood_the_report() -> None:
    findings = Findings(None)
    for number in range(MAX_ALIKE + 3):
        findings.add(made({f"feature {number}"}, 1)[1], lambda number=number: made({f"feature {number}"}, 1))  # type: ignore[misc]
    assert len(findings) == MAX_ALIKE
    assert sum(finding.count for finding in findings) == MAX_ALIKE + 3
