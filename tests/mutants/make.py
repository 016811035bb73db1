"""Put mutants of good code before their judges and write docs/mutants.md: `python -m tests.mutants.make`."""

import argparse
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.mutants import judges
from tests.mutants.mutate import ROOT, Judge, Mutant, copy_of_tree, mutant, noticed, places, put_before, sample

SEED: Final = 1
IMPL: Final = (
    "impl/sliced.py", "impl/grouped.py", "impl/hostsplit.py", "impl/packed.py", "impl/packed_pooler.py",
    "impl/methods.py", "impl/pooler.py", "impl/special.py", "impl/late_interaction.py", "impl/verify.py",
)  # fmt: skip
ORACLE: Final = (
    "oracle/reference.py", "oracle/approx.py", "oracle/rows.py", "oracle/metadata.py", "oracle/guard.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "oracle/contracts").glob("*.py")),
)  # fmt: skip
ORACLE_SAMPLE: Final = 300
PAGE: Final = ROOT / "docs/mutants.md"
ARGUED: Final = Path(__file__).parent / "argued.toml"

ANY: Final = "*"
"""For what a line becomes: whatever it is, unless somebody notices."""

Argued = dict[tuple[str, str, str], str]
"""By module and lines, why nobody can notice it."""

HEAD: Final = """\
# Mutants

Made by `tox -e mutants`; do not edit. A mutant is a small change of good code, made with
[cosmic-ray](https://cosmic-ray.readthedocs.io): another operator, number or comparison, a negated condition, a loop
that does not run, a decorator gone. Each is tried in a process of its own; one that does not import is noticed.

Of `impl/` every mutant is judged, by a short fuzz of the built-in poolers ({fuzz} scenarios each, seed {fuzz_seed}),
then by the same on the simulated device ({simulated} scenarios each), then by `poolproof check`. Of `oracle/` {sample}
are drawn (seed {seed}) and judged by the tests of their module, and by every {every}th pooler of the zoo. Left out,
and counted nowhere: changes of `|`, which is written in annotations, `impl/vllm`, `oracle/device` and
`oracle/scenario.py`.

What nobody notices is argued, by name, or stands there as a gap. Those argued are put before the first judge alone.
"""


@dataclass(frozen=True)
class Part:
    """Modules and who judges them."""

    name: str
    made: int
    judged: Sequence[tuple[Mutant, str]]


def main() -> None:
    """Judge, tell each survivor as it comes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["impl", "oracle"], help="impl, oracle, or both")
    parser.add_argument("--sample", type=int, default=ORACLE_SAMPLE, help="mutants of oracle/ to draw")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tree = copy_of_tree(Path(directory).resolve())
        for name in chosen.parts:
            told = section(_judge(tree, name, chosen.sample), _argued())
            sections = _sections() | {name: told}
            PAGE.write_text(head(chosen.sample) + "".join(sections.values()), encoding="utf-8")


def _sections() -> dict[str, str]:
    """The parts of the page as it stands; those that are not judged anew stay."""
    there = PAGE.read_text(encoding="utf-8").split("\n## ")[1:] if PAGE.exists() else []
    return {"impl": "", "oracle": ""} | {text[1 : text.index("/`")]: "\n## " + text for text in there}


def _judge(tree: Path, name: str, count: int) -> Part:
    modules = IMPL if name == "impl" else ORACLE
    made = [place for module in modules for place in places(module)]
    drawn = [mutant(place) for place in sample(made, None if name == "impl" else count, SEED)]
    for module in {judges.group(one.module): one.module for one in drawn}.values():
        if said := noticed(tree, module, _judges(module)):
            raise SystemExit(f"{module} as it is should be right, but {said}")
    click.echo(f"{name}: {len(drawn)} of {len(made)} mutants")
    judged = []
    argued = _argued()
    started = time.monotonic()
    for place, one in enumerate(drawn, 1):
        said = put_before(tree, one, _judges(one.module)[: 1 if _why(one, argued) else None])
        judged.append((one, said))
        if said and one.key in argued:
            raise SystemExit(f"{one.key} is argued equivalent, yet noticed: {said}")
        if not said:
            click.echo(f"survives: {one.module} [{one.operator}]\n  - {one.was}\n  + {one.becomes}")
        if place % 20 == 0:
            click.echo(f"{name}: {place} of {len(drawn)}, {time.monotonic() - started:.0f} s")
    return Part(name, len(made), judged)


def _judges(module: str) -> Sequence[Judge]:
    if module.startswith("impl/"):
        return (judges.fuzz, judges.fuzz_simulated, judges.check)
    return (judges.tests,)


def _argued() -> Argued:
    entries = tomllib.loads(ARGUED.read_text(encoding="utf-8"))["mutant"]
    return {(entry["module"], entry["was"], entry["becomes"]): entry["why"] for entry in entries}


def _why(one: Mutant, argued: Argued) -> str | None:
    return argued.get(one.key) or argued.get((one.module, one.was, ANY))


def head(count: int) -> str:
    """How the page came about."""
    return HEAD.format(
        fuzz=judges.SCENARIOS, fuzz_seed=judges.SEED, simulated=judges.SIMULATED_SCENARIOS, sample=count, seed=SEED,
        every=judges.EVERY_SO_MANY,
    )  # fmt: skip


def section(part: Part, argued: Argued) -> str:
    """What became of a part."""
    caught = Counter(by for _, by in part.judged if by)
    equivalent = sum(not by and _why(one, argued) is not None for one, by in part.judged)
    gaps = len(part.judged) - caught.total() - equivalent
    score = 100 * caught.total() / (len(part.judged) - equivalent)
    lines = [
        "", f"## `{part.name}/`: {caught.total()} of {len(part.judged)} noticed, {equivalent} argued, {gaps} gaps", "",
        f"Of {part.made:,} mutants {len(part.judged):,} are judged; {score:.1f} % of what isn't argued is noticed.", "",
        "| module | judged | noticed |", "| --- | --- | --- |",
    ]  # fmt: skip
    total = Counter(one.module for one, _ in part.judged)
    noticed_in = Counter(one.module for one, by in part.judged if by)
    lines += [f"| `{module}` | {total[module]} | {noticed_in[module]} |" for module in total]
    lines += ["", "| noticed by | mutants |", "| --- | --- |", *(f"| {by} | {n} |" for by, n in caught.most_common())]
    lines += ["", "Survivors:"]
    for one, by in part.judged:
        if not by:
            why = _why(one, argued) or "**A gap**: nothing notices it."
            lines += ["", f"`{one.module}`, {one.operator}. {why}", ""]
            lines += ["```diff", f"- {one.was}", f"+ {one.becomes}", "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
