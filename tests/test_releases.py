"""vLLM releases as subjects: each loads and is served, says what it lacks, and shows its known faults."""

import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from fuzz.campaign import Budget, fuzz, scenarios
from fuzz.check import regressions
from fuzz.draws import SeededDraw
from fuzz.generator import generate
from fuzz.mix import for_subjects
from fuzz.releases import RELEASES
from fuzz.start import run
from fuzz.verdict import Verdict
from fuzz.world import as_called, supports
from impl.config import Subject
from impl.loading import load
from impl.vllm import fetch
from oracle.scenario import POOLING_TYPES, Scenario
from tests.releases import release

pytestmark = pytest.mark.releases
CPU = torch.device("cpu")
SINGLE_FILE = {
    "async-scheduling", "logit-sigma", "open-head-dtype", "chunked-bos-eos-filter", "bos-eos-filter", "dense-head",
    "late-interaction", "named-activation", "late-chunking", "dense-and-sparse",
}  # fmt: skip
UNTIL_0_18 = {"named-activation", "late-chunking", "dense-and-sparse", "chunked-bos-eos-filter"}
LACKS = {
    "0.11.0": {"chunked-token-tasks", "token-heads", *SINGLE_FILE},
    "0.12.0": {"chunked-token-tasks", *SINGLE_FILE},
    "0.13.0": SINGLE_FILE,
    "0.14.1": {"bos-eos-filter", "late-interaction", "logit-sigma", *UNTIL_0_18},
    "0.17.1": {"late-interaction", "logit-sigma", *UNTIL_0_18},
    "0.18.1": {"logit-sigma", *UNTIL_0_18},
    "0.19.1": {"logit-sigma", "late-chunking", "chunked-bos-eos-filter"},
    "0.32.0": {"late-chunking", "chunked-bos-eos-filter"},
    "0.33.0": {"chunked-bos-eos-filter"},
}
"""By the last release that lacks just these."""


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def plain(subject: Subject, count: int) -> list[Scenario]:
    """Scenarios of one task each, since tasks that mix make several releases fall; half of them unchunked."""
    mix = replace(for_subjects([subject]), p_mixed_tasks=0, p_unchunked=0.5, p_head_part=0.2)
    return [generate(SeededDraw(seed), mix) for seed in range(count)]


def served(subject: Subject, count: int) -> list[Scenario]:
    drawn = islice(scenarios(for_subjects([subject]), 3), count)
    return [scenario for scenario in drawn if supports(subject, scenario)]


@pytest.mark.parametrize("version", RELEASES)
def test_every_pooling_type_holds_somewhere_at_each_level_and_no_checker_fails(version: str) -> None:
    subject = release(version)
    held: set[tuple[str, str]] = set()
    for scenario in plain(subject, 400):
        judgement = run(scenario, subject, CPU)
        assert judgement.verdict is not Verdict.UNKNOWN, judgement.message
        if judgement.verdict is Verdict.HOLDS:
            held.update((scenario.options.level, scenario.pooling_type(request)) for request in scenario.requests)
    assert held == {(level, kind) for level in ("method", "pooler") for kind in POOLING_TYPES}


@pytest.mark.parametrize("version", RELEASES)
def test_what_a_release_lacks_is_read_off_its_classes(version: str) -> None:
    subject = release(version)
    assert subject.lacks == next(lacks for last, lacks in LACKS.items() if number(version) <= number(last))
    assert subject.rows == (("step",) if number(version) < (0, 21) else ("group",))
    assert subject.spec == f"vllm=={version}"


@pytest.mark.parametrize(("version", "verdict"), [("0.20.2", Verdict.VIOLATES), ("0.33.0", Verdict.HOLDS)])
def test_two_placeholders_for_an_unfinished_request(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/pull/41049
    subject = release(version)
    step = next(s for s in regressions() if s.options.tok_pooling_type == "STEP" and len(s.steps) > 1)
    judgement = run(as_called(subject, step), subject, CPU)
    assert judgement.verdict is verdict
    assert judgement.contract == ("one-output-per-request" if verdict is Verdict.VIOLATES else "")


@pytest.mark.parametrize(("version", "verdict"), [("0.13.0", Verdict.CRASHES), ("0.33.0", Verdict.HOLDS)])
def test_token_and_sequence_tasks_in_one_step(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/pull/36614
    subject = release(version)
    mixed = [s for s in regressions() if len({s.pooling_type(r) for r in s.requests}) > 1]
    seen = [run(as_called(subject, s), subject, CPU).verdict for s in mixed if supports(subject, as_called(subject, s))]
    assert verdict in seen
    assert verdict is Verdict.CRASHES or set(seen) == {Verdict.HOLDS}


def test_two_releases_in_one_process_keep_their_own_faults() -> None:
    old, new = release("0.20.2"), release("0.33.0")
    assert old.api.PoolingMetadata is not new.api.PoolingMetadata
    report = fuzz([old, new], Budget(max_scenarios=300), seed=2, device=CPU)
    doubled = [finding.spec for finding in report.findings if finding.contract == "one-output-per-request"]
    assert doubled == ["vllm==0.20.2"]


MOVES = {
    "config": "foundation.config",
    "utils": "foundation.utilities",
    "exceptions": "foundation.errors.exceptions",
    "tasks": "frontend.processing.tasks",
    "pooling_params": "frontend.processing.pooling_params",
    "sampling_params": "frontend.processing.sampling_params",
    "v1.pool": "engine.pool",
    "model_executor.layers.pooler": "layers.pooler",
}


def test_a_layout_that_is_not_known_is_found_by_the_names_of_its_classes(tmp_path: Path) -> None:
    known = release("0.33.0")
    shutil.copytree(fetch.release("0.33.0"), tmp_path, dirs_exist_ok=True)
    package = tmp_path / "vllm"
    for old, new in MOVES.items():
        for suffix in ("", ".py"):
            path = package.joinpath(*old.split(".")).with_suffix(suffix)
            if path.exists():
                target = package.joinpath(*new.split(".")).with_suffix(suffix)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
    for path in package.rglob("*.py"):
        text = path.read_text()
        for old, new in MOVES.items():
            text = text.replace(f"from vllm.{old}", f"from vllm.{new}")
        path.write_text(text)
    moved = load(f"vllm@{tmp_path}")
    assert (moved.rows, moved.lacks) == (known.rows, known.lacks)
    for scenario in served(known, 100):
        assert run(scenario, moved, CPU).verdict is run(scenario, known, CPU).verdict


def test_a_checkout_with_a_fault_is_judged_and_not_refused(tmp_path: Path) -> None:
    release("0.33.0")
    shutil.copytree(fetch.release("0.33.0"), tmp_path, dirs_exist_ok=True)
    special = tmp_path / "vllm/model_executor/layers/pooler/special.py"
    text = special.read_text()
    special.write_text(text.replace("tasks = pooling_metadata.tasks", "tasks = pooling_metadata.tasks[10]"))
    assert special.read_text() != text
    subject = load(f"vllm@{tmp_path}")
    drawn = next(s for s in served(subject, 100) if s.options.level == "pooler" and s.requests)
    judgement = run(drawn, subject, CPU)
    assert judgement.verdict is Verdict.CRASHES
    assert judgement.place.startswith(f"{special}:")
