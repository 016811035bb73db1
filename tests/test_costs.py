"""What each built-in pooler costs, in figures that do not depend on the machine; times are never asserted.

A figure may fall, with the table, but not rise. Waits for the device are counted on the simulated one.
"""

from typing import Any, Final

import pytest
import torch

from fuzz.audit import measure
from fuzz.bench.prepared import Stage, Timed
from fuzz.bench.workloads import workloads
from impl.builtin import BUILTIN
from oracle.contracts import LADDER
from oracle.device.named import named
from tests.counting import Counts, count

CPU: Final = torch.device("cpu")
WORKLOADS: Final = workloads()

ALLOWED: Final[dict[str, dict[str, Counts]]] = {
    "all-short-32": {
        "sliced": Counts(98, 0, 0, 8),
        "grouped": Counts(8, 0, 0, 10),
        "hostsplit": Counts(3, 0, 0, 7),
        "packed": Counts(3, 0, 0, 8),
    },
    "all-off-32": {
        "sliced": Counts(98, 0, 0, 7),
        "grouped": Counts(8, 0, 0, 9),
        "hostsplit": Counts(3, 0, 0, 6),
        "packed": Counts(3, 0, 0, 7),
    },
    "all-async-32": {
        "sliced": Counts(130, 32, 1224192, 8),
        "grouped": Counts(40, 32, 1224192, 10),
        "hostsplit": Counts(35, 32, 1224192, 7),
        "packed": Counts(4, 1, 1224192, 8),
    },
    "step-32": {
        "sliced": Counts(293, 96, 337920, 46),
        "grouped": Counts(203, 96, 337920, 48),
        "hostsplit": Counts(198, 96, 337920, 45),
        "packed": Counts(18, 1, 337920, 24),
    },
    "step-columns-32": {
        "sliced": Counts(421, 128, 10224, 46),
        "grouped": Counts(331, 128, 10224, 48),
        "hostsplit": Counts(326, 128, 10224, 45),
        "packed": Counts(22, 2, 338580, 28),
    },
    "cls-32": {
        "sliced": Counts(131, 1, 65536, 13),
        "grouped": Counts(41, 1, 65536, 15),
        "hostsplit": Counts(36, 1, 65536, 12),
        "packed": Counts(3, 1, 65536, 9),
    },
    "last-32": {
        "sliced": Counts(131, 1, 65536, 10),
        "grouped": Counts(41, 1, 65536, 12),
        "hostsplit": Counts(36, 1, 65536, 9),
        "packed": Counts(3, 1, 65536, 6),
    },
    "mean-32": {
        "sliced": Counts(131, 33, 131072, 12),
        "grouped": Counts(41, 33, 131072, 14),
        "hostsplit": Counts(36, 33, 131072, 11),
        "packed": Counts(28, 8, 0, 9),
    },
    "chunked-32": {
        "sliced": Counts(130, 32, 491520, 12),
        "grouped": Counts(40, 32, 491520, 14),
        "hostsplit": Counts(35, 32, 491520, 11),
        "packed": Counts(75, 4, 262144, 15),
    },
    "chunked-async-32": {
        "sliced": Counts(130, 32, 491520, 12),
        "grouped": Counts(40, 32, 491520, 14),
        "hostsplit": Counts(35, 32, 491520, 11),
        "packed": Counts(75, 4, 262144, 15),
    },
    "token-embed-uniform-32": {
        "sliced": Counts(354, 160, 0, 205),
        "grouped": Counts(264, 160, 0, 207),
        "hostsplit": Counts(259, 160, 0, 204),
        "packed": Counts(11, 5, 0, 21),
    },
    "token-classify-mixed-32": {
        "sliced": Counts(242, 80, 0, 109),
        "grouped": Counts(152, 80, 0, 111),
        "hostsplit": Counts(147, 80, 0, 108),
        "packed": Counts(23, 18, 0, 51),
    },
    "embed-uniform-32": {
        "sliced": Counts(388, 161, 16384, 208),
        "grouped": Counts(298, 161, 16384, 210),
        "hostsplit": Counts(293, 161, 16384, 207),
        "packed": Counts(11, 6, 16384, 19),
    },
    "embed-mixed-32": {
        "sliced": Counts(356, 113, 16384, 160),
        "grouped": Counts(266, 113, 16384, 162),
        "hostsplit": Counts(261, 113, 16384, 159),
        "packed": Counts(104, 51, 16384, 98),
    },
}
"""By workload and pooler: operations, tensors allocated, bytes copied, Python calls; each for 32 requests."""

READS: Final = {"sliced": (0, 2), "grouped": (2, 0), "hostsplit": (0, 0), "packed": (0, 0)}
"""Reads of the device: a call, and a request."""

GROWS: Final = ("mean", "chunked", "chunked-async", "token-classify-mixed", "embed-mixed")
"""Where even packed does something for each request: a block of rows, a chunk, params of its own."""


def costs(workload: str, name: str) -> Counts:
    with torch.inference_mode():
        return count(Stage(WORKLOADS[workload], CPU).prepare(BUILTIN[name]).timed)


@pytest.mark.parametrize(("workload", "name"), [(each, name) for each in ALLOWED for name in BUILTIN])
def test_a_call_costs_no_more_than_it_did(workload: str, name: str) -> None:
    assert risen(costs(workload, name), ALLOWED[workload][name]) == {}


def risen(now: Counts, allowed: Counts) -> dict[str, tuple[int, int]]:
    """Each figure that is higher than it may be, with both."""
    pairs: dict[str, Any] = {key: (value, getattr(allowed, key)) for key, value in vars(now).items()}
    return {key: pair for key, pair in pairs.items() if pair[0] > pair[1]}


@pytest.mark.parametrize(
    "kind", [name.removesuffix("-32") for name in ALLOWED if name.removesuffix("-32") not in GROWS]
)
def test_packed_does_nothing_once_a_request(kind: str) -> None:
    few, many = (costs(f"{kind}-{batch}", "packed") for batch in (8, 32))
    assert (few.operations, few.allocated, few.python_calls) == (many.operations, many.allocated, many.python_calls)


def test_packed_copies_half_of_what_the_others_copy_of_chunks() -> None:
    others = {costs("chunked-32", name).copied_bytes for name in ("sliced", "grouped", "hostsplit")}
    # Of a prompt in n chunks others write n - 1 chunks and then all n, packed each chunk once.
    chunks = 8
    assert {costs("chunked-32", "packed").copied_bytes * (2 * chunks - 1) / chunks} == others


def test_without_an_engine_that_overwrites_it_all_is_handed_out_without_a_copy() -> None:
    for name in BUILTIN:
        assert (costs("all-short-32", name).copied_bytes, costs("all-short-32", name).allocated) == (0, 0)


@pytest.mark.parametrize("name", BUILTIN)
def test_reads_of_the_device(name: str) -> None:
    a_call, a_request = READS[name]
    all_rows = [row for row in measure([BUILTIN[name]], named("sim")) if row.load == "ALL"]
    assert [row.figures["reads"] for row in all_rows] == [[a_call + a_request * batch for batch in LADDER]]


def test_each_figure_shows_what_is_added() -> None:
    with torch.inference_mode():
        timed = Stage(WORKLOADS["all-short-8"], CPU).prepare(BUILTIN["packed"]).timed
        before = count(timed)

        def with_a_copy() -> Any:
            return [view.clone() for view in timed.call()]

        after = count(Timed("worse", with_a_copy))
    rows_bytes = 8 * 16 * 1024 * 2
    assert after.operations == before.operations + 8
    assert after.allocated == before.allocated + 8
    assert after.copied_bytes == before.copied_bytes + rows_bytes
    assert after.python_calls > before.python_calls
    assert set(risen(after, before)) == {"operations", "allocated", "copied_bytes", "python_calls"}
