"""What a Ray cluster costs the process that merges, by range and by failure: `python -m tests.cluster_costs`.

On one machine the nodes take their share of the processors, so what is measured is processor time of this process,
all its threads, and never the time that passes. Ranges are made short, so that there are many.
"""

import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import click
import torch
from ray.cluster_utils import Cluster

from fuzz.campaign import Budget, fuzz
from fuzz.cluster import in_cluster
from fuzz.expendable import Limits
from fuzz.ranges import Ranges
from impl.builtin import BUILTIN
from impl.config import Subject
from impl.loading import load
from tests.subjects import write

CPU = torch.device("cpu")


def cost(address: str, subject: Subject, count: int, range_s: float, per_cpu: int = 2) -> tuple[float, int, int]:
    """Processor seconds of a campaign of so many scenarios, its ranges, and its failures."""
    with (
        patch("fuzz.cluster.RANGE_S", range_s),
        patch("fuzz.cluster.RANGE_S_PER_CPU", 0.0),
        patch("fuzz.cluster.PER_CPU", per_cpu),
        patch.object(Ranges, "put", autospec=True, side_effect=Ranges.put) as put,
    ):
        began_s = time.process_time()
        search = in_cluster(address, Limits())
        report = fuzz([subject], Budget(max_scenarios=count), 1, CPU, search=search)
        return time.process_time() - began_s, put.call_count, report.verdicts["violates"]


def main() -> None:
    """Print the slopes."""
    torch.set_num_threads(1)
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False},
    )
    good = BUILTIN["hostsplit"]
    try:
        for per_cpu in (2, 500):
            few, many = (cost(made.address, good, 6000, range_s, per_cpu) for range_s in (2.0, 0.005))
            each_ms = 1000 * (many[0] - few[0]) / (many[1] - few[1])
            click.echo(f"{2 * per_cpu} ranges out: {each_ms:.2f} ms a range, by {few[1]} and {many[1]} ranges")
        with tempfile.TemporaryDirectory() as directory:
            bad = load(write(Path(directory), "answers too soon"))
            few, many = (cost(made.address, bad, count, 0.5) for count in (500, 6000))
            each_ms = 1000 * (many[0] - few[0]) / (many[2] - few[2])
            click.echo(f"{each_ms:.2f} ms a failure, by {few[2]} and {many[2]} failures")
    finally:
        made.shutdown()


if __name__ == "__main__":
    main()
