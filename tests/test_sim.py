"""The simulated device behaves as a device of its own: where it may differ from a CPU, it does."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fuzz.campaign import scenarios
from fuzz.mix import for_subjects
from fuzz.start import run
from fuzz.verdict import Verdict
from fuzz.world import supports
from impl.builtin import BUILTIN
from impl.config import Subject, SubjectError
from oracle.device.bindings import bindings
from oracle.device.memory import address, data, retained_bytes
from oracle.device.named import named
from oracle.device.ops import UnknownOperatorError
from oracle.device.record import Record, recording
from oracle.device.stream import STREAM, RewrittenSourceError, late_copies
from oracle.scenario import Arrival, Options, Request, Scenario, Step, Traffic

SIM = named("sim")
TO_SIM: dict[str, Any] = {"device": SIM, "non_blocking": True}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def rows() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values).to(SIM)


# What a pooler may do with its tensors, on the device as on the host.
SAME: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda x: (x + 1) * x / 2 - x.square(),
    "cat": lambda x: torch.cat([x, x[1:]]),
    "clone": lambda x: x.clone(),
    "comparison": lambda x: ~(x > 3),
    "contiguous": lambda x: x.T.contiguous(),
    "cumsum": lambda x: x.cumsum(0),
    "deepcopy": copy.deepcopy,
    "dtype": lambda x: x.half().to(torch.bfloat16).float(),
    "expand": lambda x: x[0].expand(2, 3),
    "gather": lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64, device=x.device)),
    "in place": lambda x: x.clone().add_(1).mul_(x).clamp_(min=2),
    "index_add_": lambda x: torch.zeros(2, 3, device=x.device).index_add_(0, x[:, 0].long() % 2, x),
    "index_select": lambda x: x.index_select(0, x[:2, 1].long() % 4),
    "isnan": lambda x: x.isnan().any(),
    "iteration": lambda x: [row * 2 for row in x],
    "layer_norm": lambda x: functional.layer_norm(x, (3,)),
    "linear": lambda x: functional.linear(x, torch.ones(2, 3, device=x.device)),
    "masked_fill": lambda x: x.masked_fill(x > 3, 0.0),
    "matmul": lambda x: x @ x.T,
    "max": lambda x: x.max(dim=1).values,
    "mean": lambda x: x.mean(dim=0, dtype=torch.float32),
    "module": lambda x: torch.nn.Identity()(x),
    "new": lambda x: [x.new_zeros(2, 2), x.new_full((1,), 3.0), x.new_empty(0, 3), torch.ones_like(x)],
    "normalize": lambda x: functional.normalize(x, dim=-1),
    "pad": lambda x: functional.pad(x, (0, 0, 0, 2)),
    "pad_sequence": lambda x: torch.nn.utils.rnn.pad_sequence([x, x[:2]], batch_first=True),
    "places by list": lambda x: x[[2, 0]],
    "places by tensor": lambda x: x[torch.tensor([2, 0], device=x.device)],
    "repeat_interleave": lambda x: x.repeat_interleave(x[:, 0].long() % 2, dim=0, output_size=2),
    "scatter_add_": lambda x: torch.zeros(4, 3, device=x.device).scatter_add_(0, (x % 4).long(), x),
    "select": lambda x: [x[0], x[-1], x[1, 2], x[..., 1], x[:, None], x[1:3, 0], x[x[1, 0].long()]],
    "set by mask": lambda x: _changed(x, x > 3, 0.0),
    "set by place": lambda x: _changed(x, 1, x[0]),
    "set by places": lambda x: _changed(x, x[:2, 1].long() % 4, x[:2]),
    "sigmoid": lambda x: x.sigmoid(),
    "softmax": lambda x: x.softmax(dim=-1),
    "sort": lambda x: (-x).sort(dim=1).values,
    "split": lambda x: [*torch.split(x, [1, 3]), *x.split_with_sizes([2, 2]), *x.chunk(2), *x.unbind(1)],
    "stack": lambda x: torch.stack([x[0], x[2]]),
    "std": lambda x: x.std(0),
    "sum": lambda x: x.sum(),
    "tensor": lambda x: torch.tensor([1, 2], device=x.device),
    "topk": lambda x: x.topk(2).values,
    "unsqueeze": lambda x: x.unsqueeze(1).squeeze(1).flatten().view(3, 4).reshape(-1),
    "where": lambda x: torch.where(x > 3, x, -1.0),
    "zeros": lambda x: [torch.zeros(2, device=x.device), torch.arange(1, 4, device=x.device)],
}


def _changed(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


def _leaves(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [leaf for item in result for leaf in _leaves(item)]


@pytest.mark.parametrize("name", SAME)
def test_operators_give_what_they_give_on_the_host(name: str) -> None:
    due, got = _leaves(SAME[name](rows())), _leaves(SAME[name](rows().to(SIM)))
    assert len(due) == len(got)
    for on_host, on_device in zip(due, got, strict=True):
        assert on_device.device == SIM
        assert (on_device.shape, on_device.dtype, on_device.stride()) == (
            on_host.shape, on_host.dtype, on_host.stride(),
        )  # fmt: skip
        assert data(on_device).equal(on_host)


def test_its_tensors_do_not_lie_on_the_host() -> None:
    tensor = rows().to(SIM)
    assert (tensor.device, tensor.device.type, tensor.is_cpu, tensor.is_cuda) == (SIM, "sim", False, False)
    assert tensor.cpu().device.type == "cpu"
    assert tensor.to(SIM) is tensor
    with pytest.raises(TypeError, match="copy it to the host"):
        np.asarray(tensor)


def test_a_layer_can_be_moved_to_it() -> None:
    layer = torch.nn.Linear(3, 2)
    due = layer(rows())
    assert data(layer.to(SIM)(rows().to(SIM))).equal(due)


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda host, sim: sim + host,
    "add, host first": lambda host, sim: host + sim,
    "in place on the host": lambda host, sim: host.add_(sim),
    "cat": lambda host, sim: torch.cat([sim, host]),
    "stack": lambda host, sim: torch.stack([sim, host]),
    "index_select": lambda host, sim: sim.index_select(0, torch.tensor([0])),
    "index_add_": lambda host, sim: sim.index_add_(0, torch.tensor([0]), sim[:1]),
    "linear": lambda host, sim: functional.linear(sim, host),
    "scalar of the host in place": lambda host, sim: host[0, 0].add_(sim[0, 0]),
    "set places to host values": lambda host, sim: sim.__setitem__(indices(0), host[:1]),
    "mask of the device on the host": lambda host, sim: host[sim > 3],
    "places of the device on the host": lambda host, sim: host[indices(0)],
}


@pytest.mark.parametrize("name", MIXED)
def test_devices_do_not_mix(name: str) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        MIXED[name](rows(), rows().to(SIM))


def test_a_scalar_of_the_host_goes_along_and_is_counted() -> None:
    record = Record()
    with recording(record):
        assert data(rows().to(SIM) * torch.tensor(2.0)).equal(rows() * 2)
    assert record.host_scalars == 1


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(UnknownOperatorError, match=r"aten\.linalg_qr"):
        torch.linalg.qr(rows().to(SIM))


def test_an_output_that_must_grow_is_refused() -> None:
    with pytest.raises(UnknownOperatorError, match="resize"):
        torch.add(rows().to(SIM), 1, out=torch.empty(0, device=SIM))


def test_what_the_device_lacks_is_not_held_against_the_subject() -> None:
    subject = Subject(
        "mine", lambda config, _: lambda hidden_states, _: torch.linalg.qr(hidden_states), frozenset({"ALL"})
    )
    scenario = Scenario((Request("a", "token_embed", (1,)),), (Step((("a", 1),)),))
    judgement = run(scenario, subject, SIM)
    assert judgement.verdict is Verdict.UNKNOWN
    assert "aten.linalg_qr" in judgement.message


def test_engines_do_not_run_on_it() -> None:
    scenario = Scenario((Request("a", "token_embed", (1,)),), (), Options(level="engine"), Traffic((Arrival(),)))
    with pytest.raises(SubjectError, match="makes its own tensors"):
        run(scenario, BUILTIN["hostsplit"], SIM)
    assert for_subjects([replace(BUILTIN["hostsplit"], levels=("method", "engine"))], simulated=True).levels == (
        "method",
    )


def test_views_share_memory_and_copies_do_not() -> None:
    tensor = rows().to(SIM)
    view, clone = tensor[1:2], tensor.clone()
    assert address(view) == address(tensor) != address(clone)
    assert retained_bytes(view) == 4 * 3 * 4
    view.zero_()
    assert data(tensor)[1].tolist() == [0, 0, 0]


def test_host_memory_can_be_pinned_for_it() -> None:
    with bindings(SIM):
        made = (
            rows().pin_memory(),
            torch.empty(2, pin_memory=True),
            torch.tensor([1], pin_memory=True),
            torch.zeros_like(rows(), pin_memory=True)[1:],
        )
        assert all(tensor.is_pinned() and tensor.is_cpu for tensor in made)
        assert not rows().is_pinned()


def test_code_for_it_finds_the_functions_that_need_help() -> None:
    with bindings(SIM):
        tensor = rows().to(SIM)
        assert data(torch.nonzero(tensor > 9)).tolist() == [[3, 1], [3, 2]]
        assert torch.nonzero(rows() > 9, as_tuple=True)[0].tolist() == [3, 3]
        assert torch.tensor([tensor[0, 1], 2.0]).tolist() == [1.0, 2.0]
        assert data(tensor.new_tensor([3])).tolist() == [3.0]


# Copies that land late.


def test_a_download_lands_at_the_next_wait() -> None:
    with late_copies():
        early = rows().to(SIM).to("cpu", non_blocking=True)
        assert early.isnan().all()
        torch.get_device_module(SIM).synchronize()
        assert early.equal(rows())


def test_a_download_brings_what_was_there_when_it_was_asked_for() -> None:
    with late_copies():
        tensor = rows().to(SIM)
        late = tensor.to("cpu", non_blocking=True)
        tensor.zero_()
        STREAM.land()
        assert late.equal(rows())


def test_an_event_waits_for_no_more_than_came_before_it() -> None:
    tensor = rows().to(SIM)
    with late_copies():
        first = tensor.to("cpu", non_blocking=True)
        event = torch.get_device_module(SIM).Event()
        event.record()
        second = tensor.to("cpu", non_blocking=True)
        assert not event.query()
        event.synchronize()
        assert event.query()
        assert first.equal(rows())
        assert second.isnan().all()


def test_an_upload_reads_its_source_as_late_as_it_may() -> None:
    tensor = rows().to(SIM)
    with bindings(SIM), late_copies():
        source = torch.tensor([0, 1]).pin_memory()
        index = source.to(**TO_SIM)
        picked = tensor.index_select(0, index)
        total = torch.zeros(3, device=SIM)
        total += picked.sum(0)
        total.add_(1)
        assert data(picked).equal(rows()[:2])
        source[0] = 3
        assert [place.rpartition("/")[2].partition(":")[0] for place in STREAM.land()] == ["test_sim.py"]
        assert data(picked).equal(rows()[[3, 1]])
        assert data(total).equal(rows()[[3, 1]].sum(0) + 1)


def test_an_upload_from_pageable_memory_is_safe() -> None:
    with late_copies():
        source = torch.tensor([0, 1])
        index = source.to(**TO_SIM)
        source.fill_(7)
        assert STREAM.land() == []
        assert data(index).tolist() == [0, 1]


def test_a_round_trip_over_pinned_memory_needs_no_wait() -> None:
    with bindings(SIM), late_copies():
        tensor = rows().to(SIM)
        back = tensor.to("cpu", non_blocking=True).to(**TO_SIM)
        tensor.zero_()
        assert data(back).equal(rows())
        assert STREAM.land() == []
        assert data(back).equal(rows())


def test_an_index_that_is_rewritten_out_of_range_is_told_as_what_it_is() -> None:
    tensor = rows().to(SIM)
    with bindings(SIM), late_copies():
        source = torch.tensor([0, 1]).pin_memory()
        tensor.index_select(0, source.to(**TO_SIM))
        source.fill_(9)
        with pytest.raises(RewrittenSourceError, match="rewrote the source"):
            STREAM.land()


# Scenarios on it.


def test_seeding_pytorch_is_no_cause_for_a_warning() -> None:
    # As each worker does when it starts; the suite turns warnings into errors.
    torch.manual_seed(1)


def test_verdicts_are_those_of_the_cpu() -> None:
    subjects = list(BUILTIN.values())
    compared = 0
    for scenario in islice(scenarios(for_subjects(subjects), 7), 300):
        for subject in subjects:
            if supports(subject, scenario):
                on_cpu, on_sim = (run(scenario, subject, named(name)) for name in ("cpu", "sim"))
                assert (on_sim.verdict, on_sim.contract, on_sim.comparisons, on_sim.step) == (
                    on_cpu.verdict, on_cpu.contract, on_cpu.comparisons, on_cpu.step,
                )  # fmt: skip
                compared += 1
    assert compared > 600


def test_right_poolers_stand_late_copies() -> None:
    subjects = list(BUILTIN.values())
    drawn = [
        scenario
        for scenario in islice(scenarios(for_subjects(subjects, simulated=True), 11), 200)
        if scenario.options.late_copies
    ]
    assert len(drawn) > 20
    for scenario in drawn:
        for subject in subjects:
            if supports(subject, scenario):
                assert not run(scenario, subject, SIM).verdict.is_finding
