"""On a CUDA device: what the simulated one promises, and what only hardware can show. `pytest -m cuda`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from fuzz.audit import measure
from fuzz.campaign import scenarios
from fuzz.draws import SeededDraw
from fuzz.generator import generate
from fuzz.mix import for_subjects
from fuzz.start import run
from fuzz.verdict import Judgement
from fuzz.world import supports
from impl.builtin import BUILTIN
from impl.config import PoolerConfig
from oracle.device.audit import audit
from oracle.device.named import named
from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates
from oracle.scenario import DtypeName, Scenario
from tests.test_audit import FREE, WAITS, rows
from tests.zoo_sim import MEMBERS, Member

# Read when the first matrix product runs; without it deterministic ones are refused.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]
SCENARIOS = 150
DTYPES: tuple[DtypeName, ...] = ("float32", "float16", "bfloat16")
UNSEEN = {"synchronize", "copy_ to pageable memory"}
"""Waits that torch's sync debug mode doesn't report."""


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def cuda() -> torch.device:
    return named("cuda")


def drawn(dtype: DtypeName, count: int = SCENARIOS) -> list[Scenario]:
    mix = replace(for_subjects(BUILTIN.values()), dtypes=(dtype,))
    return list(islice(scenarios(mix, 20261), count))


def faults(some: Sequence[Scenario], device: torch.device, dirty: bool = False) -> list[Judgement]:
    """Judge the built-ins; after each scenario the device must still compute, and nothing may have come late."""
    found = []
    for scenario in some:
        for subject in BUILTIN.values():
            if supports(subject, scenario):
                if dirty:
                    _leave_dirt(device)
                judgement = run(scenario, subject, device)
                torch.cuda.synchronize()
                assert torch.ones(64, device=device).sum().item() == 64
                if judgement.verdict.value not in ("holds", "rejects"):
                    found.append(judgement)
    return found


def _leave_dirt(device: torch.device) -> None:
    """Fill what the allocator hands out next."""
    for count in (16, 256, 4096, 1 << 16, 1 << 20):
        torch.full((count,), torch.nan, device=device)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_built_ins_hold(dtype: DtypeName, deterministic: bool, cuda: torch.device) -> None:
    torch.use_deterministic_algorithms(deterministic)
    try:
        assert faults(drawn(dtype), cuda) == []
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_built_ins_hold_on_a_side_stream(dtype: DtypeName, cuda: torch.device) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        assert faults(drawn(dtype, 50), cuda) == []


def test_built_ins_hold_on_memory_that_was_used_before(cuda: torch.device) -> None:
    assert faults(drawn("float32", 50), cuda, dirty=True) == []


def test_a_wrong_pooler_is_caught_there_too(cuda: torch.device) -> None:
    from fuzz.canary import CANARY

    some = islice(scenarios(for_subjects([CANARY]), 0), 60)
    assert any(run(scenario, CANARY, cuda).verdict.is_finding for scenario in some)


# Waits.


@pytest.mark.parametrize("name", [name for name in WAITS if name not in UNSEEN])
def test_cuda_waits_where_the_simulated_device_says(name: str, cuda: torch.device) -> None:
    tensor = rows().to(cuda)
    act, _, _ = WAITS[name]
    act(tensor.clone())
    with audit(cuda) as record:
        act(tensor)
    assert record.waiting
    assert {crossing.place for crossing in record.waiting} == {
        f"{act.__code__.co_filename}:{act.__code__.co_firstlineno}"
    }


@pytest.mark.parametrize("name", FREE)
def test_cuda_does_not_wait_where_the_simulated_device_does_not(name: str, cuda: torch.device) -> None:
    tensor = rows().to(cuda)
    act, _, _ = FREE[name]
    act(tensor.clone())
    with audit(cuda) as record:
        act(tensor)
    assert record.waiting == []


@pytest.mark.parametrize("name", BUILTIN)
def test_figures_are_those_of_the_simulated_device(name: str, cuda: torch.device) -> None:
    for simulated, real in zip(measure([BUILTIN[name]], named("sim")), measure([BUILTIN[name]], cuda), strict=True):
        for figure in ("reads", "uploads", "waits", "moved_bytes"):
            assert (real.load, figure, real.figures[figure]) == (simulated.load, figure, simulated.figures[figure])


@pytest.mark.parametrize(
    "member", [member for member in MEMBERS if member.contract != "values"], ids=lambda member: member.factory.__name__
)
def test_faults_are_caught_by_the_same_contracts(member: Member, cuda: torch.device) -> None:
    judgements = [run(generate(SeededDraw(seed), member.mix), member.subject, cuda) for seed in range(60)]
    assert {judgement.contract for judgement in judgements if judgement.verdict.is_finding} == {member.contract}


# Buffers that are replayed.


def _metadata(counts: Sequence[int], device: torch.device) -> PoolingMetadata:
    lengths = torch.tensor(counts)
    metadata = PoolingMetadata(
        lengths, None, None, [PoolingParams(task="embed") for _ in counts], [PoolingStates() for _ in counts]
    )
    metadata.build_pooling_cursor(np.array(counts), lengths, device)
    return metadata


@pytest.mark.parametrize(
    ("name", "captures"), [("packed", True), ("hostsplit", True), ("grouped", False), ("sliced", False)]
)
def test_only_a_pooler_that_never_waits_can_be_captured_in_a_graph(
    name: str, captures: bool, cuda: torch.device
) -> None:
    counts = [3, 1, 4]
    buffer, metadata = torch.zeros(8, 16, device=cuda), _metadata(counts, cuda)
    pool = BUILTIN[name].build(PoolerConfig(pooling_type="LAST"), "method")
    pool(buffer, metadata)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with nullcontext() if captures else pytest.raises(RuntimeError):
        with torch.cuda.graph(graph):
            pooled = pool(buffer, metadata)
        for step in range(3):
            fresh = torch.arange(128.0, device=cuda).reshape(8, 16) + 1000 * step
            buffer.copy_(fresh)
            graph.replay()
            assert torch.equal(torch.as_tensor(pooled), fresh[[2, 3, 7]])
