"""The pooling methods side by side on the published workload, each first proved right on that very input.

64 requests of 8,192 tokens in all, hidden size 4096, bfloat16; timed is ALL pooling of the subgroup of 32
token_classify requests that starts at request 16. The subgroup is handed over in each calling convention
that the subject takes. Nothing is asserted about time.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from impl.builtin import BUILTIN
from impl.config import PoolerConfig, Subject, SubjectError
from impl.loading import load
from oracle.metadata import RowsConvention, task_groups
from oracle.reference import pool as expected
from oracle.rows import same_numbers
from oracle.scenario import Request

NUM_REQUESTS: Final = 64
NUM_TOKENS: Final = 64 * 128
HIDDEN_SIZE: Final = 4096
GROUP: Final = range(16, 48)
"""Places of the token_classify requests in the batch; the others are of another task."""

DEVICES: Final = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def even_lens() -> list[int]:
    """The published lengths."""
    return [NUM_TOKENS // NUM_REQUESTS] * NUM_REQUESTS


def varying_lens() -> list[int]:
    """The same total cut at random places: from a few tokens to several hundred."""
    cuts = np.random.default_rng(0).choice(np.arange(1, NUM_TOKENS), NUM_REQUESTS - 1, replace=False)
    return [stop - start for start, stop in pairwise([0, *sorted(cuts.tolist()), NUM_TOKENS])]


PROMPT_LENS: Final = {"even": even_lens(), "varying": varying_lens()}


def subjects() -> Iterator[Subject]:
    """The built-in subjects, and vLLM where it is installed."""
    yield from BUILTIN.values()
    with warnings.catch_warnings():
        # vLLM's imports warn about things that are no business of these benchmarks.
        warnings.simplefilter("ignore")
        try:
            yield load("vllm")
        except SubjectError:
            return


@dataclass(frozen=True)
class Workload:
    """One step's rows (tokens, hidden_size), and the rows of each of its requests."""

    prompt_lens: Sequence[int]
    hidden_states: torch.Tensor

    @property
    def rows(self) -> Sequence[torch.Tensor]:
        """Each request's own rows."""
        stops = list(accumulate(self.prompt_lens))
        return [self.hidden_states[stop - length : stop] for stop, length in zip(stops, self.prompt_lens, strict=True)]

    def subgroup(self, subject: Subject, convention: RowsConvention) -> tuple[torch.Tensor, Any]:
        """What the subject's pooler is handed of the step."""
        api, lens = subject.api, np.array(self.prompt_lens, dtype=np.int32)
        metadata = api.PoolingMetadata(
            prompt_lens=torch.from_numpy(lens),
            prompt_token_ids=None,
            prompt_token_ids_cpu=None,
            pooling_params=[
                api.PoolingParams(task="token_classify" if place in GROUP else "embed") for place in range(NUM_REQUESTS)
            ],
            pooling_states=[api.PoolingStates() for _ in lens],
        )
        metadata.build_pooling_cursor(lens, torch.from_numpy(lens), self.hidden_states.device)
        groups = task_groups(self.hidden_states, metadata, convention)
        return next((rows, group) for task, rows, group in groups if task == "token_classify")


@cache
def workload(lengths: str, device: str) -> Workload:
    """A workload of seeded noise; made once, for it is 64 MiB."""
    noise = torch.randn(NUM_TOKENS, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    return Workload(PROMPT_LENS[lengths], noise.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", PROMPT_LENS)
@pytest.mark.parametrize(
    ("subject", "convention"),
    [
        pytest.param(subject, convention, id=f"{subject.spec}-{convention}")
        for subject in subjects()
        for convention in subject.rows
    ],
)
def test_all_pooling(
    benchmark: BenchmarkFixture, subject: Subject, convention: RowsConvention, lengths: str, device: str
) -> None:
    work = workload(lengths, device)
    hidden_states, metadata = work.subgroup(subject, convention)
    pool = subject.build(PoolerConfig(pooling_type="ALL", rows=convention), "method")

    def call() -> Any:
        outputs = pool(hidden_states, metadata)
        if device == "cuda":
            torch.cuda.synchronize()
        return outputs

    with torch.inference_mode():
        check(call(), work)
        benchmark.group = f"ALL on {lengths} lengths, {device}"
        benchmark.name = f"{subject.name}, {convention} rows"
        check(benchmark(call), work)


def check(outputs: Sequence[torch.Tensor | None], work: Workload) -> None:
    """Hold each result against the oracle, bit for bit."""
    assert len(outputs) == len(GROUP)
    for place, output in zip(GROUP, outputs, strict=True):
        rows = work.rows[place]
        due = expected("ALL", rows, Request(f"#{place}", "token_classify", (0,) * len(rows)))
        assert isinstance(output, torch.Tensor)
        assert isinstance(due, torch.Tensor)
        assert (output.shape, output.dtype) == (due.shape, due.dtype)
        assert same_numbers(output, due), f"request {place} did not get its own rows"
