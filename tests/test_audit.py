"""The audit sees every wait and every crossing, says where, holds subjects to their budget, and changes nothing."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from fuzz import check
from fuzz.audit import Row, measure
from fuzz.cli import main
from fuzz.draws import SeededDraw
from fuzz.exhaustive import Scope
from fuzz.generator import generate
from fuzz.ladder import ladders
from fuzz.start import run
from fuzz.verdict import Judgement, Verdict
from fuzz.world import supports
from impl.builtin import BUILTIN
from impl.config import Subject, SubjectError, SyncBudget
from impl.loading import from_factory
from oracle.device import audit as audit_module
from oracle.device.audit import add_trace, audit, unaudited
from oracle.device.bindings import bindings
from oracle.device.named import named
from oracle.device.record import Record, recording
from tests.zoo_sim import LATE, MEMBERS

SIM = named("sim")
NEVER = SyncBudget()


def rows() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


def audited(act: Callable[[torch.Tensor], Any]) -> Record:
    with torch.inference_mode(), bindings(SIM):
        tensor = rows().to(SIM)
        with audit(SIM) as record:
            act(tensor)
    return record


WAITS: dict[str, tuple[Callable[[torch.Tensor], Any], str, str]] = {
    ".item()": (lambda x: x[0, 0].item(), "read", "item"),
    ".tolist()": (lambda x: x.tolist(), "read", "tolist"),
    "bool()": (lambda x: bool(x[0, 0]), "read", "bool"),
    "if": (lambda x: 1 if x.isnan().any() else 0, "read", "bool"),
    "int()": (lambda x: int(x[0, 0]), "read", "int"),
    "float()": (lambda x: float(x[0, 0]), "read", "float"),
    "slice": (lambda x: x[: x[0, 1].long()], "read", "index"),
    "select": (lambda x: x[x[0, 1].long()], "read", "index"),
    "range()": (lambda x: range(x[0, 1].long()), "read", "index"),
    "in": (lambda x: 3.0 in x, "read", "item"),
    ".cpu()": (lambda x: x.cpu(), "read", "copy to the host"),
    "copy_ to pageable memory": (lambda x: rows().copy_(x, non_blocking=True), "read", "copy to the host"),
    "nonzero": (lambda x: x.nonzero(), "read", "nonzero"),
    "torch.nonzero": (lambda x: torch.nonzero(x, as_tuple=True), "read", "nonzero"),
    "torch.where(mask)": (lambda x: torch.where(x > 3), "read", "nonzero"),
    "mask": (lambda x: x[x > 3], "read", "boolean mask"),
    "set by mask": (lambda x: x.__setitem__(x > 9, x[0, :2] + 1), "read", "boolean mask"),
    "masked_select": (lambda x: x.masked_select(x > 3), "read", "masked_select"),
    "torch.equal": (lambda x: torch.equal(x, x), "read", "torch.equal"),
    "allclose": (lambda x: torch.allclose(x, x), "read", "torch.allclose"),
    "unique": (lambda x: torch.unique(x), "read", "unique"),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x), "read", "unique_consecutive"),
    "repeat_interleave": (
        lambda x: x.repeat_interleave(x[:, 0].long(), dim=0), "read", "repeat_interleave without output_size",
    ),
    "bincount": (lambda x: x[0].long().bincount(), "read", "bincount"),
    "print": (lambda x: str(x), "read", "print"),
    "f-string": (lambda x: f"{x[0, 0]:.2f}", "read", "print"),
    "upload": (lambda x: rows().to(x.device), "upload", "copy to the device"),
    "upload from pinned memory": (lambda x: rows().pin_memory().to(x.device), "upload", "copy to the device"),
    "torch.tensor": (lambda x: torch.tensor([1, 2], device=x.device), "upload", "copy to the device"),
    "places by list": (lambda x: x[:, [0, 2]], "upload", "index from the host"),
    "places of the host": (lambda x: x[torch.tensor([0, 2])], "upload", "index from the host"),
    "set to host values": (lambda x: x.__setitem__(0, torch.ones(3)), "upload", "copy to the device"),
    "synchronize": (lambda x: torch.get_device_module(x.device).synchronize(), "sync", "synchronize"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_recorded_with_its_place(name: str) -> None:
    act, way, operation = WAITS[name]
    record = audited(act)
    assert [(crossing.way, crossing.operation) for crossing in record.waiting] == [(way, operation)]
    assert record.waiting[0].place.startswith(f"{__file__}:")


FREE: dict[str, tuple[Callable[[torch.Tensor], Any], int, int]] = {
    # What is done, kernels, uploads or downloads that don't wait.
    "views": (lambda x: [x[1:], x.T, *torch.split(x, [1, 3]), x.view(-1), x[None], x.detach()], 0, 0),
    "allocation": (lambda x: [torch.empty(3, device=x.device), x.new_empty(2)], 0, 0),
    "nothing": (lambda x: x[:0].clone(), 0, 0),
    "clone": (lambda x: x.clone(), 1, 0),
    "set by mask to a number": (lambda x: x.__setitem__(x > 3, 0.0), 2, 0),
    "set a row": (lambda x: x.__setitem__(0, x[1]), 1, 0),
    "places of the device": (lambda x: x[x[:2, 0].long()], 2, 0),
    "repeat_interleave": (lambda x: x[:1].repeat_interleave(x[0, 1:2].long(), dim=0, output_size=1), 3, 0),
    "upload": (lambda x: rows().to(x.device, non_blocking=True), 0, 1),
    "download": (lambda x: x.to("cpu", non_blocking=True), 0, 1),
    "copy_ to pinned memory": (lambda x: rows().pin_memory().copy_(x, non_blocking=True), 0, 1),
}


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_counted_as_what_it_is(name: str) -> None:
    act, kernels, crossings = FREE[name]
    record = audited(act)
    assert (record.waiting, record.kernels, len(record.crossings)) == ([], kernels, crossings)


def test_bytes_are_those_that_cross_and_those_that_kernels_touch() -> None:
    record = audited(lambda x: [x.clone(), x[0].cpu(), rows().to(x.device)])
    assert (record.reads, record.uploads, record.moved_bytes) == (1, 1, 3 * 4 + 12 * 4)
    assert record.device_bytes == 2 * 12 * 4


def test_the_checkers_own_business_is_left_out() -> None:
    def act(tensor: torch.Tensor) -> None:
        with unaudited():
            tensor.tolist()

    assert audited(act) == Record()


def test_on_a_cpu_there_is_nothing_to_see() -> None:
    with audit(named("cpu")) as record:
        rows().tolist()
    assert record == Record()


# Budgets.


def climbed(subject: Subject) -> list[Judgement]:
    with torch.inference_mode():
        return [run(ladder.scenario, subject, SIM) for ladder in ladders(subject)]


@pytest.mark.parametrize("name", BUILTIN)
def test_built_ins_keep_to_what_they_declare(name: str) -> None:
    assert {judgement.verdict for judgement in climbed(BUILTIN[name])} == {Verdict.HOLDS}


@pytest.mark.parametrize(("name", "reads"), [("sliced", "2 reads for 1 request"), ("grouped", "2 reads for 1 request")])
def test_a_budget_of_zero_fails_who_reads(name: str, reads: str) -> None:
    for judgement in climbed(BUILTIN[name].held_to(NEVER)):
        assert (judgement.verdict, judgement.contract) == (Verdict.VIOLATES, "sync-budget")
        assert judgement.message.startswith(reads)
        assert f"impl/{name}.py:" in judgement.message


def test_a_budget_of_zero_passes_who_does_not() -> None:
    for name in ("hostsplit", "packed"):
        assert {judgement.verdict for judgement in climbed(BUILTIN[name].held_to(NEVER))} == {Verdict.HOLDS}


def test_growth_is_told_however_large_the_budget() -> None:
    growing = climbed(BUILTIN["sliced"].held_to(SyncBudget(per_call=1000)))
    assert "64 reads for 32 requests, 2.0 more with each" in growing[0].message
    assert {judgement.contract for judgement in growing[:-1]} == {"waits-do-not-grow"}
    assert {judgement.contract for judgement in climbed(BUILTIN["grouped"].held_to(SyncBudget(1000)))} == {""}


@pytest.mark.parametrize(
    ("declared", "pooling_type", "allowed"),
    [(0, "ALL", 0), (3, "ALL", 3), ((1, 2), "ALL", 9), ({"ALL": 1}, "ALL", 1), ({"ALL": 1}, "LAST", 0)],
)
def test_a_factory_declares_its_budget(declared: Any, pooling_type: str, allowed: int) -> None:
    def factory(config: Any) -> Any: ...

    vars(factory).update(supports={"ALL", "LAST"}, sync_budget=declared)
    assert from_factory(factory, "mine").sync_budget(pooling_type).allowed(4) == allowed


@pytest.mark.parametrize("declared", [-1, "2", (1, 2, 3), {"FIRST": 1}, None])
def test_an_impossible_budget_is_refused(declared: Any) -> None:
    def factory(config: Any) -> Any: ...

    vars(factory).update(sync_budget=declared)
    with pytest.raises(SubjectError, match="sync_budget"):
        from_factory(factory, "mine")


def test_an_audit_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = [*BUILTIN.values(), *(member.subject for member in MEMBERS if member.contract != "sync-budget")]
    drawn = [generate(SeededDraw(seed), LATE) for seed in range(40)]

    def verdicts() -> list[Judgement]:
        with torch.inference_mode():
            return [
                run(scenario, subject, SIM) for scenario in drawn for subject in subjects if supports(subject, scenario)
            ]

    @contextmanager
    def blind(device: torch.device, profiles: bool = False) -> Iterator[Record]:
        with recording(None):
            yield Record()

    seen = verdicts()
    monkeypatch.setattr("fuzz.runner.audit", blind)
    # A place in a message is a place in the code, the same in both.
    assert verdicts() == seen
    assert len({judgement.contract for judgement in seen}) > 3


# The command.


def test_the_audit_tells_growth_from_none() -> None:
    found = {(row.subject, row.load): row for row in measure([BUILTIN["sliced"], BUILTIN["hostsplit"]], SIM)}
    sliced, hostsplit = found["sliced", "ALL"], found["hostsplit", "ALL"]
    assert sliced.figures["reads"] == [2, 4, 8, 16, 32, 64]
    assert sliced.per_request("reads") == pytest.approx(2)
    assert hostsplit.figures["reads"] == [0] * 6
    assert list(sliced.places.values()) == [64]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_audit_compares_two() -> None:
    result = invoke("audit", "--compare", "sliced", "hostsplit", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    growth = {row["subject"]: row["per_request"]["reads"] for row in told["rows"] if row["load"] == "ALL"}
    assert growth == {"sliced": 2.0, "hostsplit": 0.0}
    assert "64 +2" in result.stderr
    assert "impl/sliced.py:" in result.stderr


def test_audit_takes_a_file_and_says_when_its_figures_mean_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def wrong(config):\n    return lambda hidden_states, metadata: [hidden_states]\n")
    result = invoke("audit", "--subject", f"{file}:wrong")
    assert result.exit_code == 1, result.output
    assert "one-output-per-request" in result.output


@pytest.mark.parametrize("arguments", [("audit",), ("fuzz", "--sync-budget", "0")])
def test_a_cpu_is_no_place_for_it(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, "--subject", "hostsplit", "--device", "cpu")
    assert result.exit_code == 2
    assert "on a CPU" in result.output


@pytest.mark.parametrize(("name", "exit_code"), [("sliced", 1), ("grouped", 1), ("hostsplit", 0), ("packed", 0)])
def test_fuzz_holds_to_a_budget(name: str, exit_code: int, tmp_path: Path) -> None:
    shared = ["--device", "sim", "--sync-budget", "0"]
    result = invoke("fuzz", *shared, "--subject", name, "--max-scenarios", "20", "--seed", "1", "--save", str(tmp_path))
    assert result.exit_code == exit_code, result.output
    for finding in tmp_path.glob("*.json"):
        assert f"{finding.name} --device sim --sync-budget 0" in result.output
        assert invoke("replay", str(finding), *shared).exit_code == 1
        assert invoke("replay", str(finding), "--device", "sim").exit_code == 0


@pytest.mark.parametrize(("budget", "exit_code"), [((), 0), (("--sync-budget", "0"), 1)])
def test_check_runs_on_the_simulated_device(
    budget: tuple[str, ...], exit_code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "SCOPE", Scope(max_requests=2, max_tokens=1))
    monkeypatch.setattr(check, "SAMPLED_PATHS", 3)
    monkeypatch.setattr(check, "FIXED_SCENARIOS", 10)
    monkeypatch.setattr(check, "small_scopes", lambda subject: iter(()))
    monkeypatch.setattr(check, "regressions", lambda: iter(()))
    monkeypatch.setattr("fuzz.campaign.SHRINK_TIME_S", 0.2)
    result = invoke("check", "--device", "sim", "--subject", "grouped", *budget, "--save", str(tmp_path))
    assert result.exit_code == exit_code, result.output


# What of CUDA can be tried without it.


def test_warnings_of_the_sync_debug_mode_become_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    record = Record()
    with warnings.catch_warnings(record=True) as others, recording(record), audit_module._sync_debug_mode():
        warnings.simplefilter("always")
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert modes == [0, "warn", 0]
    assert [(crossing.way, crossing.waits) for crossing in record.crossings] == [("sync", True)]
    assert record.crossings[0].place.startswith(f"{__file__}:")
    assert [str(warning.message) for warning in others] == ["something else"]


def test_a_trace_gives_copies_and_kernels() -> None:
    record = Record()
    add_trace(
        record,
        [
            {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "args": {"bytes": 8}},
            {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {"bytes": 64}},
            {"cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "args": {"bytes": 4}},
            {"cat": "gpu_memset", "name": "Memset (Device)"},
            {"cat": "kernel", "name": "void at::native::index"},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel"},
            {"ph": "M", "name": "process_name"},
        ],
    )
    assert (record.reads, record.uploads, record.kernels, record.moved_bytes) == (1, 1, 3, 72)


def test_a_row_without_figures_says_why() -> None:
    assert Row("mine", "ALL", {}, failure="crashes").to_builtins()["failure"] == "crashes"
