"""The built-in subjects by name."""

from impl.config import Level, PoolerConfig, PoolFn, Subject, SyncBudget
from impl.grouped import Grouped
from impl.hostsplit import HostSplit
from impl.late_interaction import MaxSim
from impl.methods import Methods
from impl.packed import Packed
from impl.packed_pooler import PackedPooler
from impl.pooler import Pooler
from impl.sliced import Sliced
from impl.verify import verify
from oracle.metadata import RowsConvention


def _subject(methods: type[Methods], rows: tuple[RowsConvention, ...], about: str, budget: SyncBudget) -> Subject:
    def build(config: PoolerConfig, level: Level) -> PoolFn:
        if level == "pooler":
            return PackedPooler(config) if methods is Packed else Pooler(config, methods(config))
        method: PoolFn = methods(config).method(config.pooling_type)
        return method

    supports = frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN"))
    return Subject(
        name=methods.__name__.lower(),
        build=build,
        supports=supports,
        rows=rows,
        levels=("method", "pooler"),
        about=about,
        lacks=frozenset(),
        verify=verify,
        late_interaction=MaxSim,
        sync_budgets=dict.fromkeys(supports, budget),
    )


BUILTIN = {
    subject.name: subject
    for subject in (
        _subject(
            Sliced,
            ("group", "step"),
            "per-request slicing through device indices (before the change)",
            SyncBudget(per_request=2),
        ),
        _subject(
            Grouped,
            ("group", "step"),
            "one slice over the subgroup, one split (the published change)",
            SyncBudget(per_call=2),
        ),
        _subject(HostSplit, ("group",), "one split by host counts, no device read", SyncBudget()),
        _subject(Packed, ("group",), "one split, one gather, one head call a step (the fastest)", SyncBudget()),
    )
}
