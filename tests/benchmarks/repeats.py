"""Whether the benchmark's verdicts can be relied on: `python -m tests.benchmarks.repeats`, on an idle machine.

`packed` is compared again and again with an identical copy, and with itself slowed by a share of its own time.
"""

import time
from collections import Counter
from typing import Any, Final

import click
import torch

from fuzz.bench.run import bench, chosen
from impl.builtin import BUILTIN
from impl.config import Level, Outputs, PoolerConfig, PoolFn, Subject

PACKED: Final = BUILTIN["packed"]
SLOWED_BY: Final = 0.12
ROUNDS: Final = 100


def slowed(config: PoolerConfig, level: Level) -> PoolFn:
    """`packed`, busy for a while longer after each call."""
    pool = PACKED.build(config, level)

    def wait_too(hidden_states: torch.Tensor, metadata: Any) -> Outputs:
        started_s = time.perf_counter()
        outputs = pool(hidden_states, metadata)
        until_s = time.perf_counter() + SLOWED_BY * (time.perf_counter() - started_s)
        while time.perf_counter() < until_s:
            pass
        return outputs

    return wait_too


OTHERS: Final = {
    "an identical copy": Subject("copy", PACKED.build, PACKED.supports),
    f"slowed by {100 * SLOWED_BY:g} %": Subject("slowed", slowed, PACKED.supports),
}


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--workload", "names", multiple=True, default=("all-short-32", "step-32"), show_default=True)
def main(repeats: int, names: tuple[str, ...]) -> None:
    """Count the verdicts of so many repeats, as a Markdown table."""
    torch.set_num_threads(1)
    click.echo("| workload | other | called | ratios told |\n|---|---|---|---|")
    for workload in chosen(names):
        for what, other in OTHERS.items():
            compared = [
                bench([PACKED, other], workload, ROUNDS, torch.device("cpu"), seed)[1].beside_base
                for seed in range(repeats)
            ]
            told = [beside for beside in compared if beside is not None]
            words = Counter(beside.verdict for beside in told)
            called = ", ".join(f"{word}, {count} of {repeats}" for word, count in words.most_common())
            ratios = [beside.ratio for beside in told]
            click.echo(f"| {workload.name} | {what} | {called} | {min(ratios):.3f} to {max(ratios):.3f} |")


if __name__ == "__main__":
    main()
