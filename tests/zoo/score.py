"""What the harness catches of the zoo, and how soon: `python -m tests.zoo.score --output docs/zoo.md`.

Generic scenarios alone: the generator knows nothing of the members. A scenario is the unit, not the second, so
the page can be made again on any machine.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import click
import torch

from fuzz.campaign import scenarios
from fuzz.check import check_one
from fuzz.findings import write_atomically
from fuzz.mix import for_subjects
from fuzz.start import run
from oracle import contracts
from oracle.contracts import AFTER, BEFORE, BEYOND_OWNERSHIP, all_contracts
from tests.zoo import CALLERS, ZOO
from tests.zoo.register import BadPooler

CPU: Final = torch.device("cpu")
MOST: Final = 20_000
"""Scenarios of a seed before it is given up: what `fuzz --max-time 30s` runs."""
MOST_WITHOUT: Final = 1_500
"""The same where one contract is left out."""
SEEDS_WITHOUT: Final = 2


@dataclass(frozen=True)
class Score:
    """What became of one bad pooler."""

    name: str
    how: str
    cases: tuple[int | None, ...]
    """For each seed, how many scenarios until it was caught; None if it was not."""
    caught_by: tuple[str, ...]
    """The contracts that caught it, the most frequent first."""
    checked: bool | None
    """Whether `poolproof check` tells of it; None if that was not asked."""
    alone: str
    """The contract without which nothing catches it; empty if another would."""

    @property
    def median(self) -> float:
        """Scenarios to detection; a seed that was silent counts as for ever."""
        return statistics.median_low(math.inf if case is None else case for case in self.cases)

    @property
    def found(self) -> int:
        """How many seeds caught it."""
        return sum(case is not None for case in self.cases)


def score(name: str, seeds: int, checks: bool) -> Score:
    """Search for a member of the zoo by each of so many seeds, and check it."""
    torch.set_num_threads(1)
    bad = next(member for member in ZOO if member.name == name)
    with torch.inference_mode():
        caught = [_first(bad, seed, MOST) for seed in range(seeds)]
        by = Counter(contract for found in caught if found for contract in found[1:2])
        alone = ""
        for contract in by:
            with without(contract):
                if not any(_first(bad, seed, MOST_WITHOUT, contract) for seed in range(SEEDS_WITHOUT)):
                    alone = contract
    checked = bool(check_one(bad.subject, CPU, None, lambda event: None).findings) if checks else None
    return Score(
        bad.name,
        bad.how,
        tuple(found[0] if found else None for found in caught),
        tuple(contract for contract, _ in by.most_common()),
        checked,
        alone,
    )


def _first(bad: BadPooler, seed: int, most: int, ignored: str = "") -> tuple[int, str] | None:
    drawn = scenarios(for_subjects([bad.subject]), seed)
    for place, scenario in enumerate(islice(drawn, most), 1):
        judgement = run(scenario, bad.subject, CPU)
        if judgement.verdict.is_finding and judgement.contract != ignored:
            return place, judgement.contract
    return None


@contextmanager
def without(name: str) -> Iterator[None]:
    """The harness with one contract left out."""
    lists: list[list[contracts.Contract[object]]] = [BEFORE, AFTER, BEYOND_OWNERSHIP]  # type: ignore[list-item]
    kept = [list(each) for each in lists]
    for each in lists:
        each[:] = [contract for contract in each if contract.name != name]
    try:
        yield
    finally:
        for each, all_of_it in zip(lists, kept, strict=True):
            each[:] = all_of_it


def page(scores: Sequence[Score]) -> str:
    """The scores as Markdown."""
    seeds = len(scores[0].cases)
    caught = sum(own.found == seeds for own in scores)
    checked = [own.checked for own in scores if own.checked is not None]
    soon = sum(own.median < 100 for own in scores)
    lines = [
        "# The zoo: what the harness catches",
        "",
        f"Made by `python -m tests.zoo.score --output docs/zoo.md{' --checks' if checked else ''}`.",
        "",
        f"{len(scores)} bad poolers (`tests/zoo`), each with one realistic mistake, against generic scenarios of",
        f"{seeds} seeds, up to {MOST:,} each, about what `poolproof fuzz --max-time 30s` runs; and against",
        "`poolproof check`.",
        "",
        f"- caught by every seed: {_share(caught, len(scores))}",
        f"- caught by `check`: {_share(sum(checked), len(checked)) if checked else 'not asked (--checks)'}",
        f"- median under 100 scenarios: {_share(soon, len(scores))}",
        "",
        "## By contract",
        "",
        f"Alone: bad poolers that {SEEDS_WITHOUT} x {MOST_WITHOUT:,} scenarios don't catch without the contract.",
        f"Besides these, {len(CALLERS)} bad callers stand for the contracts that are checked before a call.",
        "",
        "| contract | phase | catches | alone | for example |",
        "|---|---|---|---|---|",
    ]
    for contract in all_contracts():
        catches = [own for own in scores if contract.name in own.caught_by]
        alone = [own.name for own in scores if own.alone == contract.name]
        callers = sum(bad.contract == contract.name for bad in CALLERS)
        told = f"{len(catches)}" + (f" and {callers} callers" if callers else "")
        lines.append(f"| {contract.name} | {contract.phase} | {told} | {len(alone)} | {', '.join(alone[:3])} |")
    lines += [
        "",
        "## By member, the hardest first",
        "",
        "| bad pooler | scenarios: median (most) | seeds | caught by | check | how it came about |",
        "|---|---|---|---|---|---|",
    ]
    for own in sorted(scores, key=lambda own: (-own.median, own.name)):
        counted = [case for case in own.cases if case is not None]
        told = f"{own.median:,.0f} ({max(counted):,})" if counted and own.median < math.inf else "-"
        check = {True: "yes", False: "**no**", None: ""}[own.checked]
        lines.append(
            f"| {own.name} | {told} | {own.found} of {seeds} | {', '.join(own.caught_by)} | {check} | {own.how} |"
        )
    return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)"


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--checks", is_flag=True, help="Run `poolproof check` on each besides, which takes longest.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
def main(output: Path, seeds: int, checks: bool, workers: int) -> None:
    """Score every bad pooler, and write the page."""
    # What no single run can show has no scenarios to count.
    members = [bad.name for bad in ZOO if "state-determines-behaviour" not in bad.contracts]
    scores = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for own in pool.map(partial(score, seeds=seeds, checks=checks), members):
            scores.append(own)
            click.echo(f"{own.name}: {own.median:,.0f}, {own.found} of {seeds}, {', '.join(own.caught_by)}")
    write_atomically(output, page(scores))


if __name__ == "__main__":
    main()
