"""Would Poolproof have caught the faults that shipped? `python -m tests.faults.recall --output docs/recall.md`.

Replay: the ledger's scenario, run on the release. Check and fuzz are blind: they generate what they run from
the seed alone, and the ledger only tells afterwards whether what was found is the fault.
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import click
import torch
from packaging.specifiers import SpecifierSet

from fuzz.campaign import scenarios
from fuzz.cause import cause
from fuzz.check import check_one
from fuzz.findings import write_atomically
from fuzz.ledger import Known, recall, shipped
from fuzz.mix import for_subjects
from fuzz.releases import RELEASES
from fuzz.start import run, runs_on
from fuzz.world import supports
from impl.config import Subject
from impl.loading import load
from oracle.device.named import named
from tests.faults.exhibits import Beyond, beyond

SEEDS: Final = range(5)
MOST: Final = 5_000
"""Scenarios of a seed before it is given up."""


@dataclass(frozen=True)
class Recall:
    """One fault on the last release that has it."""

    known: Known
    release: str
    replayed: bool
    checked: bool
    cases: tuple[int | None, ...]
    """For each seed, how many scenarios until the fault showed; None if it did not."""

    @property
    def blind(self) -> bool:
        """Whether a check, or a search with most of the seeds, finds it unprompted."""
        return self.checked or sum(case is not None for case in self.cases) > len(self.cases) / 2

    @property
    def told_cases(self) -> str:
        """The cases to detection, for people."""
        found = [case for case in self.cases if case is not None]
        if not found:
            return f"none of {len(self.cases)} seeds in {MOST:,}"
        told = f"{statistics.median_low(found):,} ({min(found):,} to {max(found):,})"
        return told if len(found) == len(self.cases) else f"{told}, {len(found)} of {len(self.cases)} seeds"


def measure(entries: list[Known]) -> Iterator[Recall]:
    """Each entry on the last release that has it."""
    checked: dict[tuple[str, str], set[str]] = {}
    for entry in entries:
        release = [version for version in RELEASES if version in SpecifierSet(entry.releases)][-1]
        subject, device = load(f"vllm=={release}"), named(entry.device)
        if (release, entry.device) not in checked:
            report = check_one(subject, device, None, lambda event: None, ledger=shipped())
            checked[release, entry.device] = {finding.known for finding in report.findings}
        with torch.inference_mode():
            there, _ = recall([entry], subject, device)
            cases = tuple(_cases(entry, subject, device, seed) for seed in SEEDS)
        replayed = len(there) == len(entry.witnesses)
        yield Recall(entry, release, replayed, entry.name in checked[release, entry.device], cases)


def _cases(entry: Known, subject: Subject, device: torch.device, seed: int) -> int | None:
    causes = [recalled.cause for recalled in recall([entry], subject, device)[0]]
    mix = for_subjects([subject], device.type == "sim")
    for place, scenario in enumerate(islice(scenarios(mix, seed), MOST), 1):
        if not (supports(subject, scenario) and runs_on(scenario, device)):
            continue
        judgement = run(scenario, subject, device)
        if judgement.verdict.is_finding:
            seen = cause(subject.name, scenario, judgement)
            if any(known.explains(seen) for known in causes):
                return place
    return None


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(output: Path) -> None:
    """Measure, and write the page."""
    torch.set_num_threads(1)
    measured = []
    for found in measure([entry for entry in shipped() if entry.product == "vllm" and entry.kind == "fault"]):
        measured.append(found)
        click.echo(f"{found.known.name}: replay {found.replayed}, check {found.checked}, fuzz {found.told_cases}")
    write_atomically(output, page(measured, beyond()))


def page(measured: list[Recall], others: list[Beyond]) -> str:
    """The page."""
    published = [found for found in measured if found.known.url]
    lines = [
        "# Would it have caught the faults that shipped?",
        "",
        "Made by `python -m tests.faults.recall --output docs/recall.md`.",
        "",
        "Each fault of vLLM's pooling layer that is known, on the last release that has it. **Replay** runs the",
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
        *map(_row, measured),
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


def _row(found: Recall) -> str:
    known = found.known
    title = f"[{known.title}]({known.url})" if known.url else f"{known.title} (not published)"
    where = found.release + (", simulated device" if known.device == "sim" else "")
    told = ["yes" if yes else "**no**" for yes in (found.replayed, found.checked)]
    return f"| {title} | {where} | {known.witnesses[0].contract} | {told[0]} | {told[1]} | {found.told_cases} |"


if __name__ == "__main__":
    main()
