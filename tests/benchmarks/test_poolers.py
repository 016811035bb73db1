"""The poolers side by side on every workload, each first proved right on that very input.

Among them is real vLLM, where it is installed or a release of it is in the cache, and the limit that
none can beat, where one is stated. `poolproof bench` runs the same in alternating rounds and says what
is noise. Nothing is asserted about time.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from fuzz.bench.limits import limit
from fuzz.bench.measure import warm_up
from fuzz.bench.prepared import Stage, Timed
from fuzz.bench.workloads import Workload, workloads
from impl.builtin import BUILTIN
from impl.config import Subject, SubjectError
from impl.loading import load
from tests.releases import newest_cached

ROUNDS: Final = 30
DEVICES: Final = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LIMIT: Final = "limit"
"""Stands among the subjects of a workload for what they can't beat."""
WORKLOADS: Final = workloads()


@cache
def subjects() -> dict[str, Subject]:
    """The built-in subjects, and vLLM: the installed one or else the newest release in the cache."""
    found = dict(BUILTIN)
    with warnings.catch_warnings():
        # vLLM's imports warn about things that are no business of these benchmarks.
        warnings.simplefilter("ignore")
        try:
            found["vllm"] = load("vllm")
        except SubjectError:
            cached = newest_cached()
            if cached is not None:
                version, directory = cached
                found["vllm"] = replace(load(f"vllm@{directory}"), name=f"vllm=={version}")
    return found


@lru_cache(maxsize=1)
def stage(workload: str, device: str) -> Stage:
    """One at a time, for the rows take up to 64 MiB."""
    return Stage(WORKLOADS[workload], torch.device(device))


def cases() -> Iterator[Any]:
    """Workload by workload, so that its rows are made once."""
    for device in DEVICES:
        for name, workload in WORKLOADS.items():
            for subject in (*subjects(), *([LIMIT] if workload.limit else [])):
                yield pytest.param(workload, subject, device, id=f"{name}-{subject}-{device}")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As engines run: on tensors this small threads cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("workload", "subject", "device"), list(cases()))
def test_pooling(benchmark: BenchmarkFixture, workload: Workload, subject: str, device: str) -> None:
    with torch.inference_mode():
        timed = participant(workload, subject, device)
        calls = warm_up(timed, torch.device(device))
        benchmark.group = f"{workload.name}: {workload.about}, {device}"
        benchmark.name = timed.name

        def call() -> None:
            timed.call()
            if device == "cuda":
                torch.cuda.synchronize()

        if timed.reset is None:
            benchmark.pedantic(call, rounds=ROUNDS, iterations=calls)
        else:
            benchmark.pedantic(call, setup=timed.reset, rounds=ROUNDS * calls)


def participant(workload: Workload, subject: str, device: str) -> Timed:
    """What is timed; the limit is that of the rows that the built-in poolers work on."""
    on = stage(workload.name, device)
    if subject == LIMIT:
        assert workload.limit is not None
        return limit(workload.limit, on.prepare(BUILTIN["packed"]))
    return on.prepare(subjects()[subject]).timed
