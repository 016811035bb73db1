"""Engines of other releases, each in a process of its own: published faults are found by search, and only there.

A release's imports must be installed here, so each environment runs those that it can import.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Final

import pytest

from impl.vllm import fetch
from oracle.scenario import Arrival, Head, Options, Request, Scenario, Traffic, dumps

pytestmark = pytest.mark.releases

HAS_IMPORTS: Final = importlib.util.find_spec("transformers") is not None
FROM_0_20: Final = HAS_IMPORTS and int(installed("transformers").split(".")[0]) >= 5
"""Whether the installed packages are those that releases from 0.20 import, or those of before."""


def run(subject: str, *arguments: str) -> list[Any]:
    """What a command finds on a release; the test is skipped where that isn't there or can't be imported."""
    release = subject.split("==")[1]
    if not HAS_IMPORTS:
        pytest.skip("vLLM's imports are not installed here; `tox -e vllm` and `tox -e vllm-old` install them")
    if (number(release) >= (0, 20)) != FROM_0_20:
        other = "vllm-old" if FROM_0_20 else "vllm"
        pytest.skip(f"vLLM {release} imports other versions than are installed here; `tox -e {other}` has them")
    if "POOLPROOF_FETCH" not in os.environ and not (fetch.cache() / f"vllm-{release}-whole").exists():
        pytest.skip(f"vLLM {release} is not in the cache; `poolproof fuzz --subject {subject}` fetches it")
    command = [sys.executable, "-m", "fuzz", *arguments, "--subject", subject, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert done.stdout, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])["findings"]
    return found


@cache
def search(subject: str, max_scenarios: int) -> list[Any]:
    """What a search with a fixed seed finds."""
    with tempfile.TemporaryDirectory() as kept:
        return run(subject, "fuzz", "--seed", "1", "--max-scenarios", str(max_scenarios), "--save", kept)


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def of(contract: str, findings: Sequence[Any]) -> list[Any]:
    """The findings of a contract, each of which the ledger knows."""
    found = [finding for finding in findings if finding["contract"] == contract]
    assert all(finding.get("url", "").startswith("https://github.com/vllm-project/vllm/pull/") for finding in found)
    return found


DROPPED: Final = "finishes-once"
STARVES: Final = "every-request-finishes"
LIVE: Final = "step-output-is-a-snapshot"
KEPT: Final = "query-is-let-go"
STALE_ROWS: Final = "state-is-fresh-at-the-start"


@pytest.mark.parametrize("subject", ["vllm-v1==0.31.0", "vllm-v2==0.28.0", "vllm-v1==0.19.1", "vllm-v1==0.14.0"])
def test_a_prompt_as_long_as_the_model_takes_starves_until_0_31(subject: str) -> None:
    """https://github.com/vllm-project/vllm/pull/48039."""
    (finding,) = of(STARVES, search(subject, 500))
    scenario = finding["scenario"]
    (request,) = scenario["requests"]
    assert len(request["prompt_token_ids"]) == scenario["traffic"]["max_model_len"] == 2
    assert "a (1 of 2 tokens)" in finding["message"]


def test_no_prompt_starves_from_0_32() -> None:
    assert of(STARVES, search("vllm-v1==0.32.0", 500)) == []


@pytest.mark.parametrize(
    "subject", ["vllm-v1==0.32.0", "vllm-v1==0.31.0", "vllm-v1==0.19.1", "vllm-v1==0.14.0", "vllm-v1==0.13.0"]
)
def test_the_v1_runner_keeps_rows_over_a_preemption(subject: str) -> None:
    """https://github.com/vllm-project/vllm/pull/55192."""
    (finding,) = of(STALE_ROWS, search(subject, 500))
    assert len(finding["scenario"]["requests"]) <= 2


@pytest.mark.parametrize("subject", ["vllm-v1==0.31.0", "vllm-v2==0.28.0"])
def test_a_query_is_kept_for_good_until_0_31(subject: str) -> None:
    """https://github.com/vllm-project/vllm/pull/56617."""
    (finding,) = of(KEPT, search(subject, 500))
    assert len(finding["scenario"]["requests"]) == 2


def test_it_is_let_go_from_0_32() -> None:
    assert of(KEPT, search("vllm-v1==0.32.0", 500)) == []


def test_the_v2_runner_does_not() -> None:
    assert of(STALE_ROWS, search("vllm-v2==0.28.0", 500)) == []


@pytest.mark.parametrize("subject", ["vllm-v1==0.10.1", "vllm-v1==0.13.0"])
def test_a_steps_results_name_the_requests_of_the_next_until_0_13(subject: str) -> None:
    """https://github.com/vllm-project/vllm/pull/31584."""
    (finding,) = of(LIVE, search(subject, 500))
    assert len(finding["scenario"]["requests"]) == 1


@pytest.mark.parametrize("subject", ["vllm-v1==0.14.0", "vllm-v1==0.32.0"])
def test_they_keep_their_names_from_0_14(subject: str) -> None:
    assert of(LIVE, search(subject, 500)) == []


@pytest.mark.parametrize("subject", ["vllm-v1==0.10.1", "vllm-v1==0.10.2"])
def test_until_0_11_such_a_prompt_was_dropped_unanswered(subject: str) -> None:
    (finding,) = of(DROPPED, search(subject, 500))
    assert "a was answered 0 times" in finding["message"]


def test_a_batch_from_which_one_leaves_while_another_goes_on_keeps_a_gap_in_0_10_1() -> None:
    """https://github.com/vllm-project/vllm/pull/23398."""
    (finding,) = of("batch-belongs-together", search("vllm-v1==0.10.1", 500))
    assert "slot 0 is empty" in finding["message"]
    assert len(finding["scenario"]["requests"]) == 2


def test_no_gap_is_left_from_0_10_2() -> None:
    assert of("batch-belongs-together", search("vllm-v1==0.10.2", 500)) == []


@pytest.mark.parametrize(("release", "is_wrong"), [("0.11.0", True), ("0.12.0", False)])
def test_a_token_task_that_hits_the_prefix_cache_lost_those_rows(release: str, is_wrong: bool, tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm/pull/28194."""
    requests = tuple(Request(name, "token_classify", (1, 2, 3, 4)) for name in "ab")
    options = Options(level="engine", enable_chunked_prefill=False, hidden_size=1, head=Head(head_dtype="float32"))
    traffic = Traffic((Arrival(), Arrival(2)), block_size=1, prefix_caching=True)
    file = tmp_path / "scenario.json"
    file.write_text(dumps(Scenario(requests, (), options, traffic)))
    found = run(f"vllm-v1=={release}", "replay", str(file))
    # Until 0.13 a run that goes on to its end also shows the live list of ids.
    others = [finding for finding in found if finding["contract"] != LIVE]
    assert ["partial prefill not supported with ALL" in one["message"] for one in others] == [True] * is_wrong
