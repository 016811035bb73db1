"""Would Poolproof have caught the faults that shipped? `python -m tests.faults.recall`.

Replay: the ledger's scenario, run on the release. Check and fuzz are blind: they generate what they run from
the seed alone, and the ledger only tells afterwards whether what was found is the fault. What an environment
can't run, an engine whose dependencies it has not, keeps the figures that another one measured
(`docs/recall.json`).
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import click
import msgspec
import torch
from packaging.specifiers import SpecifierSet

from fuzz.campaign import scenarios
from fuzz.cause import cause
from fuzz.check import check_one
from fuzz.findings import write_atomically
from fuzz.ledger import Known, Recalled, recall, shipped
from fuzz.mix import for_subjects
from fuzz.releases import RELEASES
from fuzz.start import run, runs_on
from fuzz.world import supports
from impl.config import Subject, SubjectError
from impl.loading import load
from oracle.device.named import named
from oracle.device.ops import NAME as SIMULATED
from oracle.scenario import dump_json
from tests.faults.exhibits import Beyond, beyond

BEFORE: Final = ("0.10.1", "0.10.2")
"""Releases of which the engine alone can be driven."""
SEEDS: Final = range(5)
MOST: Final = 5_000
"""Scenarios of a seed before it is given up."""
DATA: Final = Path("docs/recall.json")
PAGE: Final = Path("docs/recall.md")


class Recall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault on the last release that has it."""

    known: str
    release: str
    replayed: bool
    checked: bool | None
    """Whether `poolproof check` finds it; None of an engine, which check has nothing for."""
    cases: tuple[int | None, ...]
    """For each seed, how many scenarios until the fault showed; None if it did not."""

    @property
    def blind(self) -> bool:
        """Whether a check, or a search with most of the seeds, finds it unprompted."""
        return bool(self.checked) or sum(case is not None for case in self.cases) > len(self.cases) / 2

    @property
    def told_cases(self) -> str:
        """The cases to detection, for people."""
        found = [case for case in self.cases if case is not None]
        if not found:
            return f"none of {len(self.cases)} seeds in {MOST:,}"
        told = f"{statistics.median_low(found):,} ({min(found):,} to {max(found):,})"
        return told if len(found) == len(self.cases) else f"{told}, {len(found)} of {len(self.cases)} seeds"


def measure(name: str) -> Recall | None:
    """An entry of the ledger on the last release that has it; None if that can't be run here."""
    torch.set_num_threads(1)
    entry = next(own for own in shipped() if own.name == name)
    release = [version for version in (*BEFORE, *RELEASES) if version in SpecifierSet(entry.releases)][-1]
    device = named(entry.device)
    try:
        subject = load(f"{entry.products[0]}=={release}")
    except SubjectError:
        return None
    checked = None
    if "engine" not in subject.levels:
        report = check_one(subject, device, None, lambda event: None, ledger=[entry])
        checked = entry.name in {finding.known for finding in report.findings}
    with torch.inference_mode():
        there, _ = recall([entry], subject, device)
        cases = tuple(_cases(there, subject, device, seed) for seed in SEEDS)
    return Recall(entry.name, release, len(there) == len(entry.witnesses), checked, cases)


def _cases(there: Sequence[Recalled], subject: Subject, device: torch.device, seed: int) -> int | None:
    mix = for_subjects([subject], device.type == SIMULATED)
    for place, scenario in enumerate(islice(scenarios(mix, seed), MOST), 1):
        if not (supports(subject, scenario) and runs_on(scenario, device)):
            continue
        judgement = run(scenario, subject, device)
        if judgement.verdict.is_finding:
            seen = cause(subject.name, scenario, judgement)
            if any(recalled.explains(seen, judgement.message) for recalled in there):
                return place
    return None


@click.command()
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
def main(workers: int) -> None:
    """Measure what can be measured here, and write the figures and the page."""
    kept = (
        {own.known: own for own in msgspec.json.decode(DATA.read_bytes(), type=list[Recall])} if DATA.exists() else {}
    )
    entries = [entry for entry in shipped() if entry.kind == "fault"]
    # One whole vLLM has room in a process.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for entry, own in zip(entries, pool.map(measure, [entry.name for entry in entries]), strict=True):
            if own is None:
                click.echo(f"{entry.name}: can't be run here")
                continue
            kept[entry.name] = own
            click.echo(f"{entry.name}: replay {own.replayed}, check {own.checked}, fuzz {own.told_cases}")
    measured = [kept[entry.name] for entry in entries if entry.name in kept]
    write_atomically(DATA, dump_json(msgspec.to_builtins(measured)))
    write_atomically(PAGE, page(measured, {entry.name: entry for entry in entries}, beyond()))


def page(measured: Sequence[Recall], ledger: Mapping[str, Known], others: Sequence[Beyond]) -> str:
    """The page."""
    published = [found for found in measured if ledger[found.known].url]
    lines = [
        "# Would it have caught the faults that shipped?",
        "",
        "Made by `python -m tests.faults.recall`, which `tox -e museum` runs; the engines' rows by the same command in",
        "the environments of `tox -e vllm` and `tox -e vllm-old`.",
        "",
        "Each fault of vLLM's pooling that is known, on the last release that has it. **Replay** runs the",
        "scenarios of the [ledger](../fuzz/known). **Check** and **fuzz** are blind: `poolproof check`, and the",
        f"scenarios of {len(SEEDS)} seeds of `poolproof fuzz`, up to {MOST:,} each, know nothing of the fault; the",
        "ledger only tells afterwards whether what they found is it. The last column has the scenarios until then:",
        "the median over the seeds, the least and the most.",
        "",
        f"Of the {len(published)} that were published, {_share(found.replayed for found in published)} replay,",
        f"and {_share(found.blind for found in published)} are found blind.",
        "",
        "| fault | release | contract | replay | check | fuzz |",
        "|---|---|---|---|---|---|",
        *(_row(found, ledger[found.known]) for found in measured),
        "",
        "## Published, but not in the table",
        "",
        "| report | what | why not | of its kind in the zoo |",
        "|---|---|---|---|",
        *(f"| [{own.id}]({own.url}) | {own.title} | {own.reason}: {own.why} | {own.kin} |" for own in others),
    ]
    return "\n".join(lines) + "\n"


def _share(hits: Iterable[bool]) -> str:
    counted = list(hits)
    return f"{sum(counted)} ({100 * sum(counted) / len(counted):.0f} %)"


def _row(found: Recall, known: Known) -> str:
    title = f"[{known.title}]({known.url})" if known.url else f"{known.title} (not published)"
    where = f"{known.products[0]} {found.release}" + (", simulated device" if known.device == "sim" else "")
    told = [{True: "yes", False: "**no**", None: "-"}[yes] for yes in (found.replayed, found.checked)]
    return f"| {title} | {where} | {known.witnesses[0].contract} | {told[0]} | {told[1]} | {found.told_cases} |"


if __name__ == "__main__":
    main()
