"""What no implementation can beat, to be timed in the same rounds as those that try."""

import torch

from fuzz.bench.prepared import Prepared, Timed
from fuzz.bench.workloads import Limit


def limit(kind: Limit, prepared: Prepared) -> Timed:
    """The limit as something that can be timed.

    views: tensor objects for all requests, made in one call of C++. read: the rows' bytes summed as
    integers, which takes no longer than reading them.
    """
    rows, counts = prepared.rows, prepared.counts
    match kind:
        case "views":
            own = rows[: sum(counts)]
            return Timed("limit", lambda: own.split_with_sizes(counts))
        case "read":
            words = rows.view(torch.int64)
            return Timed("limit", words.sum)
