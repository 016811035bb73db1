"""What guides the search, and what would not help: `python -m tests.zoo.guidance --output docs/guidance.md`.

Ways to guide it are tried on the members of the zoo that take longest. A way that loses stays in `ways.py`, and
nowhere else, so that it can be tried again when the generator has changed.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

import click
import torch

from fuzz.findings import write_atomically
from fuzz.mix import for_subjects
from fuzz.start import run
from impl.config import Subject
from oracle.scenario import Scenario
from tests.zoo import ZOO
from tests.zoo.ways import ROOT, WAYS, Over

CPU: Final = torch.device("cpu")
TEXT: Final = Path(__file__).with_name("guidance.md")
"""What the page says whatever was measured."""
FIRST_SEED: Final = 100


@dataclass
class Trial:
    """One search."""

    subject: Subject
    most: int
    spent: int = 0
    caught: bool = False

    def judge(self, scenario: Scenario) -> None:
        """See `Judge`."""
        if not self.caught and self.spent < self.most:
            self.spent += 1
            self.caught = run(scenario, self.subject, CPU).verdict.is_finding
        if self.caught or self.spent == self.most:
            raise Over


@dataclass(frozen=True)
class Tried:
    """What became of one way on one member."""

    way: str
    member: str
    most: int
    cases: tuple[int | None, ...]
    """For each seed, how many scenarios until it was caught; None if it was not."""
    spent: int
    """Scenarios of all seeds."""
    cpu_s: float

    @property
    def found(self) -> int:
        """How many seeds caught it."""
        return sum(case is not None for case in self.cases)

    @property
    def told(self) -> str:
        """The median, a silent seed counting as for ever, and how many seeds caught it."""
        median = statistics.median_low(math.inf if case is None else case for case in self.cases)
        return f"{f'{median:,}' if median < math.inf else f'> {self.most:,}'} ({self.found} of {len(self.cases)})"

    @property
    def log_cost(self) -> float:
        """Scenarios for each detection, as a logarithm; half a detection more, since there may be none."""
        return math.log(self.spent / (self.found + 0.5))


def hardest(members: int) -> list[str]:
    """Those that take most scenarios, as `docs/zoo.md` has them."""
    _, _, listed = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8").partition("## By member")
    return [line.split("|")[1].strip() for line in listed.splitlines() if line.startswith("| ")][1 : members + 1]


def trial(way: str, subject: Subject, seeds: Sequence[int], most: int) -> Tried:
    """Search by a way with its share of the seeds, the first of them."""
    search, fewer_seeds, fewer_scenarios = WAYS[way]
    own_seeds = seeds[: max(1, len(seeds) // fewer_seeds)]
    trials = [Trial(subject, max(1, most // fewer_scenarios)) for _ in own_seeds]
    began_s = time.process_time()
    for seed, own in zip(own_seeds, trials, strict=True):
        try:
            with torch.inference_mode():
                search(for_subjects([subject]), seed, own.most, own.judge)
        except Over:
            pass
    cpu_s = time.process_time() - began_s
    cases = tuple(own.spent if own.caught else None for own in trials)
    return Tried(way, subject.name, trials[0].most, cases, sum(own.spent for own in trials), cpu_s)


@dataclass(frozen=True)
class Compared:
    """A way beside the seeded draws, over all members."""

    log_ratio: float
    """Scenarios for each detection: the mean logarithm of the ratio."""
    standard_error: float
    """Of that mean, by how the members scatter; infinite for a single one."""
    slowdown: float
    """CPU time of a scenario, as a multiple."""

    @property
    def takes(self) -> str:
        """What is seen beyond two standard errors."""
        if abs(self.log_ratio) <= 2 * self.standard_error:
            return "no difference seen"
        return "fewer" if self.log_ratio < 0 else "more"

    @property
    def told(self) -> str:
        """The ratio, and two standard errors either side."""
        low, ratio, high = (math.exp(self.log_ratio + off * self.standard_error) for off in (-2, 0, 2))
        return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def compared(tried: Sequence[Tried], way: str) -> Compared:
    """A way against the seeded draws, member by member."""
    own, base = ([each for each in tried if each.way == name] for name in (way, "seeded"))
    ratios = [one.log_cost - other.log_cost for one, other in zip(own, base, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
    own_s, base_s = (sum(each.cpu_s for each in some) / sum(each.spent for each in some) for some in (own, base))
    return Compared(statistics.fmean(ratios), error, own_s / base_s)


def page(tried: Sequence[Tried]) -> str:
    """What was measured as Markdown, within the text that stands anyway."""
    ways, members = ([*dict.fromkeys(getattr(each, key) for each in tried)] for key in ("way", "member"))
    found = {way: compared(tried, way) for way in ways if way != "seeded"}
    most = {each.way: each.most for each in tried}
    lines = [
        "| way | up to | scenarios for a detection, seeded = 1 | takes | CPU time of a scenario |",
        "|---|--:|--:|---|--:|",
    ]
    for way, own in found.items():
        lines.append(f"| {way} | {most[way]:,} | {own.told} | {own.takes} | x {own.slowdown:.1f} |")
    by_member = [f"| bad pooler | {' | '.join(ways)} |", "|---" + "|--:" * len(ways) + "|"]
    for member in members:
        told = [each.told for each in tried if each.member == member]
        by_member.append(f"| {member} | {' | '.join(told)} |")
    return Template(TEXT.read_text(encoding="utf-8")).substitute(
        members=len(members),
        seeds=len(tried[0].cases),
        most=f"{tried[0].most:,}",
        ways="\n".join(lines),
        verdict=verdict(found),
        by_member="\n".join(by_member),
    )


def verdict(found: Mapping[str, Compared]) -> str:
    """One sentence on which ways win, if any."""
    wins = [
        f"`{way}` takes fewer scenarios"
        + (" and less time" if own.log_ratio + math.log(own.slowdown) < 0 else ", though not less time")
        for way, own in found.items()
        if own.takes == "fewer"
    ]
    return f"{'; '.join(wins)}." if wins else "No way takes clearly fewer scenarios than the seeded draws do."


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--members", type=click.IntRange(min=1), default=10, show_default=True, help="The hardest so many.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--most", type=click.IntRange(min=1), default=2000, show_default=True, help="Scenarios of a seed.")
@click.option(
    "--ways", type=click.Choice([way for way in WAYS if way != "seeded"]), multiple=True, help="By default all."
)
def main(output: Path, members: int, seeds: int, most: int, ways: Sequence[str]) -> None:
    """Try ways to guide the search beside the seeded draws, and write the page."""
    torch.set_num_threads(1)
    subjects = {bad.name: bad.subject for bad in ZOO}
    tried = []
    for place, member in enumerate(hardest(members)):
        # Each member has its own, or the luck of one seed would be that of all.
        own_seeds = range(FIRST_SEED + place * seeds, FIRST_SEED + (place + 1) * seeds)
        for way in WAYS:
            if not ways or way in ("seeded", *ways):
                tried.append(trial(way, subjects[member], own_seeds, most))
                click.echo(f"{member}, {way}: {tried[-1].told}, {tried[-1].cpu_s:.0f} s")
    write_atomically(output, page(tried))


if __name__ == "__main__":
    main()
