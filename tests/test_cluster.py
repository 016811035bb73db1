"""Outposts and a Ray cluster: the same findings as on one machine, whatever is lost on the way."""

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fuzz.campaign import Budget, Campaign, Event, Listener, Progressed, Report, fuzz
from fuzz.cli import main
from fuzz.cluster import in_cluster
from fuzz.expendable import Limits
from fuzz.jobs import Setup
from fuzz.mix import for_subjects
from fuzz.outpost import Order, Outpost, answered, asked
from fuzz.relay import OUTPOSTS, relay
from fuzz.workers import in_workers
from impl.builtin import BUILTIN
from impl.config import Subject, SubjectError
from impl.loading import load
from tests.subjects import RIGHT

CPU = torch.device("cpu")
LIMITS = Limits(10.0, 256 << 20)
FALLS = {
    "dies": ("outputs = []", "outputs = []\n        if len(chunks) > 2: __import__('os')._exit(3)"),
    "answers too soon": ("if done else None", "if True else None"),
    "by the buffer": ("chunks = hidden", "hidden_states = hidden_states.roll(1, 0)\n        chunks = hidden"),
}


def falling(directory: Path, *names: str) -> list[Subject]:
    """Subjects that fall in several ways, each in a file of its own."""
    subjects = []
    for name in names:
        was, becomes = FALLS[name]
        path = directory / name / "mine.py"
        path.parent.mkdir()
        path.write_text(RIGHT.replace(was, becomes))
        subjects.append(load(f"{path}:factory"))
    return subjects


def seen(report: Report) -> list[Any]:
    """The findings; of what ends its process without how small it got, which is bounded by time."""
    assert not report.doubts
    assert report.findings
    return [
        (own.subject, own.contract, own.count, None if own.verdict == "crashes" else own) for own in report.findings
    ]


def order_for(subjects: Sequence[Subject], seed: int) -> bytes:
    campaign = Campaign(subjects, CPU, None, lambda event: None)
    return pickle.dumps(Order.of(campaign, Setup(subjects, CPU, for_subjects(subjects), seed), LIMITS))


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    """Have something done by an outpost, which ends with the test."""
    yield lambda order, method, *arguments: answered(relay(order, asked(method, *arguments)))
    while OUTPOSTS:
        OUTPOSTS.popitem()[1].end()


def test_an_outpost_plays_a_range_as_workers_do(ask: Callable[..., Any], tmp_path: Path) -> None:
    subjects = falling(tmp_path, "dies", "answers too soon")
    order = order_for(subjects, 3)
    report = fuzz(subjects, Budget(max_scenarios=150), 3, CPU, None, search=in_workers(1, LIMITS))
    one, other = (ask(order, Outpost.play, *span).outcome for span in ((0, 70), (70, 150)))
    one.played.add(other.played)
    assert one.played.scenarios == 150
    assert one.played.mix == report.mix
    fell = [*one.fell, *other.fell]
    assert [own.index for own in fell] == sorted(own.index for own in fell)
    assert one.played.verdicts.total() + len(fell) == report.verdicts.total()

    early = next(own for own in fell if own.judgement.contract == "none-iff-unfinished")
    finding, _ = ask(order, Outpost.examine, early)
    assert finding.scenario == next(own for own in report.findings if own.contract == finding.contract).scenario


def test_an_outpost_that_has_ended_is_replaced(ask: Callable[..., Any]) -> None:
    order = order_for([BUILTIN["hostsplit"]], 3)
    assert ask(order, Outpost.play, 0, 5).outcome.played.scenarios == 5
    OUTPOSTS[order].process.kill()
    with pytest.raises(ConnectionError, match="has ended"):
        ask(order, Outpost.play, 5, 10)
    assert ask(order, Outpost.play, 5, 10).outcome.played.scenarios == 5


def test_an_outpost_says_why_it_cannot_have_a_subject(ask: Callable[..., Any], tmp_path: Path) -> None:
    (subject,) = falling(tmp_path, "dies")
    (tmp_path / "dies" / "mine.py").unlink()
    with pytest.raises(SubjectError, match=r"there is no file .*mine\.py"):
        ask(order_for([subject], 3), Outpost.play, 0, 5)


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(main, ["fuzz", "--engine", "ray", "--subject", "hostsplit"])
    assert result.exit_code == 2
    assert result.stderr.strip() == (
        "could not run: --engine ray needs Ray, which is not installed here: python -m pip install 'poolproof[ray]'"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--address", "auto"), "add --engine ray"),
        (("--engine", "ray", "--workers", "2"), "a Ray cluster's are as many as its CPUs"),
    ],
)
def test_options_that_say_nothing_together_are_refused(options: Sequence[str], said: str) -> None:
    result = CliRunner().invoke(main, ["fuzz", *options])
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere:at all"])
def test_an_address_without_a_cluster_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", address)
    result = CliRunner().invoke(main, ["fuzz", "--engine", "ray", "--subject", "hostsplit"])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"could not run: there is no Ray cluster at {address!r}: ")
    assert result.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes with a CPU each, on this machine."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False, "_system_config": quick,
        },
    )  # fmt: skip
    made.add_node(num_cpus=1, object_store_memory=100 << 20)
    yield made
    made.shutdown()


def on_ray(
    cluster: Any,
    subjects: Sequence[Subject],
    count: int,
    listener: Listener = lambda event: None,
    limits: Limits = LIMITS,
) -> Report:
    search = in_cluster(cluster.address, limits)
    return fuzz(subjects, Budget(max_scenarios=count), 3, CPU, None, listener, search=search)


def test_a_cluster_finds_what_one_machine_finds(cluster: Any, tmp_path: Path) -> None:
    subjects = falling(tmp_path, "dies", "answers too soon", "by the buffer")
    local = fuzz(subjects, Budget(max_scenarios=300), 3, CPU, None, search=in_workers(2, LIMITS))
    spread = on_ray(cluster, subjects, 300)
    assert {own.subject for own in local.findings} == {own.name for own in subjects}
    assert seen(spread) == seen(local)
    assert (spread.mix, spread.together, spread.verdicts) == (local.mix, local.together, local.verdicts)
    assert (spread.scenarios, spread.comparisons) == (local.scenarios, local.comparisons)


WHERE = """
import os, time
from pathlib import Path

there = Path({there!r})


def meet():
    if os.environ.get("RAY_RAYLET_PID") == {raylet!r}:
        there.touch()
        time.sleep(1000)
    while not there.exists():
        time.sleep(0.05)
"""
"""All wait until the node that goes is in the middle of a call, where it stays."""


def test_a_lost_node_costs_its_range_which_is_played_again(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    there, path = tmp_path / "there", tmp_path / "mine.py"
    where = WHERE.format(there=str(there), raylet=str(node.all_processes["raylet"][0].process.pid))
    path.write_text(where + RIGHT.replace("outputs = []", "outputs = []\n        meet()").replace("if done", "if True"))
    lost: list[Any] = []

    def lose(event: Event) -> None:
        if isinstance(event, Progressed) and there.exists() and not lost:
            lost.append(node)
            cluster.remove_node(node, allow_graceful=False)

    subjects = [load(f"{path}:factory")]
    spread = on_ray(cluster, subjects, 1000, lose, Limits(60.0))
    assert lost
    assert "1 range that went with a worker or a node of the cluster was played again" in spread.notes
    local = fuzz(subjects, Budget(max_scenarios=1000), 3, CPU, None, search=in_workers(2, LIMITS))
    assert seen(spread) == seen(local)
    assert (spread.mix, spread.scenarios) == (local.mix, local.scenarios)


def test_what_a_node_cannot_have_is_told(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"import os\nos.environ['ONLY_ON_THE_DRIVER']\n{RIGHT}")
    monkeypatch.setenv("ONLY_ON_THE_DRIVER", "1")
    with pytest.raises(SubjectError, match=r"on a node of the cluster: .* KeyError: 'ONLY_ON_THE_DRIVER'"):
        on_ray(cluster, [load(f"{path}:factory")], 10)
