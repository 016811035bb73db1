"""The zoo: bad poolers and bad callers, each with one realistic mistake, and the contract that should catch it."""

from tests.zoo import (
    batch,
    callers,
    chunks,
    dtypes,
    heads,
    hidden,
    late,
    memory,
    misuse,
    slicing,
    special,
    values,
    verification,
)
from tests.zoo.register import CALLERS, ZOO

__all__ = [
    "CALLERS", "ZOO", "batch", "callers", "chunks", "dtypes", "heads", "hidden", "late", "memory", "misuse", "slicing",
    "special", "values", "verification",
]  # fmt: skip
