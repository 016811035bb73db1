"""Worker processes: the same findings as in one, and what dies, hangs or wavers becomes a finding."""

import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.campaign import Budget, Event, Listener, Progressed, Report, fuzz
from fuzz.check_each import check
from fuzz.examine import last_of
from fuzz.expendable import Limits
from fuzz.export import as_pytest
from fuzz.findings import ExportError, read
from fuzz.ranges import Past
from fuzz.replay import replay
from fuzz.state import FILE_NAME, kept_in
from fuzz.workers import in_workers
from impl.builtin import BUILTIN
from impl.config import Subject, SubjectError
from impl.loading import load
from oracle.scenario import ScenarioError
from tests.subjects import RIGHT, write
from tests.zoo.dying import BY_CHANCE, EATS, EXITS, LATE, LATER, LOOPS, SEGFAULTS

CPU = torch.device("cpu")
LIMITS = Limits(10.0, 256 << 20)
"""Patient enough for a busy machine."""
IMPATIENT = Limits(1.0, 256 << 20)
"""For what never comes back."""
ROOT = Path(__file__).parent.parent


def judged(
    subjects: Sequence[Subject],
    count: int,
    workers: int = 1,
    directory: Path | None = None,
    limits: Limits = LIMITS,
    listener: Listener = lambda event: None,
) -> Report:
    search = in_workers(workers, limits)
    return fuzz(subjects, Budget(max_scenarios=count), 1, CPU, directory, listener, search=search)


@pytest.mark.parametrize(
    ("subject", "verdict", "contract", "said"),
    [
        (SEGFAULTS, "crashes", "process-survives", "ended its process by SIGSEGV"),
        (EXITS, "crashes", "process-survives", "ended its process with exit status 3"),
        (LOOPS, "hangs", "comes-back", "did not come back"),
        (EATS, "crashes", "accepts-valid-input", "can't allocate memory"),
        (BY_CHANCE, "unstable", "same-answer-again", "fresh processes, in"),
        (LATE, "unstable", "state-determines-behaviour", "run alone it holds, but after"),
        (LATER, "unstable", "state-determines-behaviour", "breaks process-survives: ended its process by SIGABRT"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_dies_hangs_or_wavers_is_a_finding(
    subject: Subject, verdict: str, contract: str, said: str, tmp_path: Path
) -> None:
    limits = IMPATIENT if verdict == "hangs" else LIMITS
    report = judged([subject], 300, directory=tmp_path, limits=limits)
    finding = next(own for own in report.findings if (own.verdict, own.contract) == (verdict, contract))
    assert said in finding.message
    assert report.exit_code == 1
    assert finding.file is not None
    assert read(Path(finding.file))[1] == finding


def test_a_scenario_that_ends_its_process_is_small_in_the_end_and_names_the_line() -> None:
    finding, *others = judged([SEGFAULTS], 100).findings
    assert not others
    assert finding.count > 10
    assert len(finding.scenario.requests) == 3
    assert "dying.py:" in finding.place


def test_an_innocent_subject_is_judged_on_what_another_dies_of() -> None:
    report = judged([EXITS, BUILTIN["hostsplit"]], 100)
    assert report.scenarios == 100
    assert {finding.subject for finding in report.findings} == {"exits"}
    innocent = judged([BUILTIN["hostsplit"]], 100)
    assert report.verdicts["holds"] > innocent.verdicts["holds"] / 2


def seen(report: Report) -> list[tuple[Any, ...]]:
    return [(own.subject, own.contract, own.message, own.scenario, own.count) for own in report.findings]


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    subjects = [load(write(tmp_path, "answers too soon")), load(write(tmp_path / "other", "drops the last"))]
    alone, one, two = (
        fuzz(subjects, Budget(max_scenarios=300), 3, CPU, None, search=search)
        for search in (None, in_workers(1, Limits()), in_workers(2, Limits()))
    )
    assert len(alone.findings) > 1
    for report in (one, two):
        assert seen(report) == seen(alone)
        assert (report.mix, report.verdicts) == (alone.mix, alone.verdicts)
        assert report.together == alone.together
        assert (report.scenarios, report.comparisons) == (alone.scenarios, alone.comparisons)


def test_a_check_survives_what_it_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.check_each.FIXED_SCENARIOS", 100)
    path = tmp_path / "mine.py"
    path.write_text(
        f"import os\n{RIGHT}".replace("outputs = []", "outputs = []\n        if len(chunks) > 1: os._exit(3)")
    )
    told: list[Event] = []
    report = check([f"{path}:factory", "hostsplit"], CPU, tmp_path / "kept", told.append)
    assert report.exit_code == 1
    assert report.subjects == [f"{path}:factory", "hostsplit"]
    assert {finding.subject for finding in report.findings} == {f"{path}:factory"}
    assert [finding.contract for finding in report.findings] == ["process-survives"]
    assert any("comes from a search instead" in note for note in report.notes)
    assert any("465,977 schedules" in note for note in report.notes)


def test_a_check_that_nobody_listens_to_for_a_while_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def talks(subject: Subject, device: torch.device, directory: object, tell: Listener, *_: object) -> Report:
        for number in range(100):
            tell(Progressed(number, 0, 0, 0.0, "x" * 10_000))  # more than a pipe holds
        return Report([subject.name], None)

    naps = iter([2.0])

    def listener(event: Event) -> None:
        if isinstance(event, Progressed):
            time.sleep(next(naps, 0))

    monkeypatch.setattr("fuzz.check_each.check_one", talks)
    monkeypatch.setattr("fuzz.check_each.LIMITS", Limits(0.5))
    report = check(["hostsplit", "packed"], CPU, None, listener)
    assert (report.subjects, report.notes) == (["hostsplit", "packed"], [])


def test_time_ends_a_run_and_progress_is_told() -> None:
    told: list[Event] = []
    search = in_workers(2, LIMITS)
    report = fuzz([BUILTIN["hostsplit"]], Budget(max_time_s=1.5), 1, CPU, None, told.append, search=search)
    assert report.verdict == "holds"
    progress = [event.scenarios for event in told if isinstance(event, Progressed)]
    assert progress == sorted(progress)
    assert 0 < progress[-1] <= report.scenarios


def test_a_subject_that_cannot_be_made_is_told() -> None:
    def build(*_: object) -> Any:
        raise KeyError("no")

    with pytest.raises(SubjectError, match="could not make a pooler for ALL at level method: KeyError: 'no'"):
        judged([Subject("unmade", build, frozenset({"ALL"}))], 10)


def test_what_hangs_does_not_hang_the_campaign() -> None:
    def build(*_: object) -> Any:
        return lambda hidden_states, metadata: time.sleep(1000)

    report = judged([Subject("sleeps", build, frozenset({"ALL"}))], 100_000, limits=IMPATIENT)
    # How many they are told as depends on how small they get in the time there is.
    assert {finding.verdict for finding in report.findings} == {"hangs"}
    assert report.notes == ["ended after 5 hangs, each of which takes 1 s"]


@pytest.mark.parametrize("subject", [SEGFAULTS, LATER, BY_CHANCE], ids=lambda subject: subject.name)
def test_a_replay_shows_it_again(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.replay.load", lambda spec, budget: subject)
    for finding in judged([subject], 300, directory=tmp_path).findings:
        assert finding.file is not None
        report = replay(Path(finding.file), (), CPU, lambda event: None)
        assert report.notes == [f"reproduces: {report.findings[0].contract} is broken as before"]
        assert report.exit_code == 1


def test_alone_means_without_what_was_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.replay.load", lambda spec, budget: LATER)
    (finding,) = judged([LATER], 300, directory=tmp_path).findings
    assert finding.before is not None
    report = replay(Path(finding.file or ""), (), CPU, lambda event: None, alone=True)
    assert report.exit_code == 0
    assert report.notes == ["gone: state-determines-behaviour is no longer broken"]
    with pytest.raises(ExportError, match="only after other scenarios in the same process"):
        as_pytest(finding)


POOLPROOF = (sys.executable, "-m", "fuzz", "fuzz", "--workers", "2")


@pytest.mark.parametrize("killed", ["at once", "later"])
def test_a_killed_run_is_resumed_as_if_nothing_had_happened(killed: str, tmp_path: Path) -> None:
    spec = write(tmp_path, "drops the last")
    command = [*POOLPROOF, "--subject", spec, "--seed", "5", "--max-scenarios", "600", "--json", "--save"]
    whole = subprocess.run([*command, tmp_path / "whole"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert whole.returncode == 1, whole.stderr

    directory = tmp_path / "killed"
    with subprocess.Popen([*command, directory], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        while not (directory / FILE_NAME).exists() or (killed == "later" and not kept_in(directory).known):
            assert run.poll() is None
            time.sleep(0.01)
        run.kill()
        run.communicate()
    for path in directory.glob("*.json"):
        assert read(path)[1] is not None
    resumed = subprocess.run([*command, directory, "--resume"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert resumed.returncode == 1, resumed.stderr
    assert not list(directory.glob("*.part"))
    before, after = (json.loads(run.stdout.splitlines()[-1]) for run in (whole, resumed))
    for report in (before, after):
        for finding in report["findings"]:
            finding["file"] = Path(finding["file"]).name
        del report["elapsed_s"]
    assert after["findings"] == before["findings"]
    assert after == before
    names = [sorted(path.name for path in place.glob("*.json")) for place in (tmp_path / "whole", directory)]
    assert names[0] == names[1]


def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    command = [*POOLPROOF, "--subject", "hostsplit", "--max-time", "60s", "--save", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        while not (tmp_path / FILE_NAME).exists() or not kept_in(tmp_path).next:
            assert run.poll() is None
            time.sleep(0.05)
        assert len(members_of(run.pid)) == 3
        run.kill()
        run.wait()
        deadline_s = time.monotonic() + 30
        while members_of(run.pid) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert members_of(run.pid) == []


def test_two_campaigns_at_a_time_do_not_share_a_directory(tmp_path: Path) -> None:
    command = [*POOLPROOF, "--subject", "hostsplit", "--save", str(tmp_path)]
    with subprocess.Popen([*command, "--max-time", "60s"], cwd=ROOT, stdout=subprocess.DEVNULL) as run:
        while not (tmp_path / FILE_NAME).exists():
            assert run.poll() is None
            time.sleep(0.05)
        kept = kept_in(tmp_path).pid
        short = [*command, "--max-scenarios", "20"]
        second = subprocess.run(short, cwd=ROOT, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        told = f"could not run: another campaign that is under way keeps its findings in {tmp_path}"
        assert told in " ".join(second.stderr.split())
        assert kept_in(tmp_path).pid == kept
        run.kill()
    # The first one's end, whatever it was, leaves the directory to others.
    after = subprocess.run(short, cwd=ROOT, capture_output=True, text=True, check=False)
    assert after.returncode == 0, after.stderr


def members_of(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def test_ctrl_c_ends_a_run_with_what_was_found(tmp_path: Path) -> None:
    spec = write(tmp_path, "drops the last")
    command = [*POOLPROOF, "--subject", spec, "--seed", "5", "--max-time", "60s", "--json", "--save", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        while not (tmp_path / FILE_NAME).exists() or not kept_in(tmp_path).known:
            assert run.poll() is None
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 1, err
    assert "interrupted; this is what was found so far" in err
    assert "Traceback" not in err
    assert json.loads(out.splitlines()[-1])["findings"]
    assert members_of(run.pid) == []


def test_what_cannot_be_resumed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="there is no campaign to resume in"):
        kept_in(tmp_path)
    judged([BUILTIN["hostsplit"]], 10, directory=tmp_path)
    state = kept_in(tmp_path)
    assert (state.next, state.scenarios) == (10, 10)
    with pytest.raises(ScenarioError, match="was on hostsplit, but this run is on sliced"):
        state.check(["sliced"], CPU, None)
    with pytest.raises(ScenarioError, match="was with seed 1, but this run is with seed 2"):
        state.check(["hostsplit"], CPU, 2)
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ScenarioError, match="not JSON"):
        kept_in(tmp_path)


@pytest.mark.parametrize(
    ("ends", "own", "spans"),
    [
        ([], (0, 3), ((0, 3),)),
        ([], (0, 0), ()),
        ([0, 4], (4, 6), ((0, 6),)),
        ([0, 4, 8, 12], (16, 18), ((0, 4), (8, 12), (16, 18))),
        ([0, 4, 8, 12], (16, 16), ((0, 4), (8, 12))),
    ],
)
def test_a_past_is_told_in_spans(ends: list[int], own: tuple[int, int], spans: tuple[tuple[int, int], ...]) -> None:
    kept = array("q", ends)
    past = Past(kept, len(kept), kept[-1] if kept else -1, own)
    if kept:
        # It goes on after that.
        kept[-1] += 100
    kept.extend((500, 600))
    assert past.spans() == spans


def test_the_last_of_some_spans() -> None:
    spans = ((0, 4), (8, 12))
    assert last_of(spans, 3) == ((9, 12),)
    assert last_of(spans, 6) == ((2, 4), (8, 12))
    assert last_of(spans, 99) == spans
