"""Results of the wrong dtype, device or shape, and inputs that are refused for theirs."""

from typing import Any

import torch

from impl.hostsplit import HostSplit
from oracle.metadata import PoolingCursor, PoolingMetadata
from tests.zoo.joints import Last, Means, Steps
from tests.zoo.register import bad


@bad("dtype-and-device", serves=("ALL", "LAST"))
class Float32ForAll(HostSplit):
    """Everything is widened, as clients want float32 anyway."""

    def method(self, pooling_type: str) -> Any:
        right = super().method(pooling_type)
        return lambda hidden_states, metadata: [
            rows if rows is None else rows.float() for rows in right(hidden_states, metadata)
        ]


@bad("dtype-and-device", serves=("MEAN",))
class MeanInInputDtype(HostSplit):
    """The mean is cast back to the dtype that it came from, as most layers do."""

    def pool_mean(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        return super().pool_mean(hidden_states, metadata).to(hidden_states.dtype)


@bad("dtype-and-device", serves=("MEAN",))
class MeanInFloat64(Means):
    """Precision was asked for, and more is taken than anyone expects."""

    def total(self, chunk: torch.Tensor) -> torch.Tensor:
        return chunk.sum(dim=0, dtype=torch.float64)


@bad("dtype-and-device", serves=("LAST",))
class OtherDevice(HostSplit):
    """The result is made on a device that stands in the code, not on that of the rows."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        return super().pool_last(hidden_states, metadata).to("meta")


@bad("accepts-valid-input", serves=("ALL", "LAST"))
class Int32Only(HostSplit):
    """The kernel was compiled for int32 counts, and an assertion says so."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        assert cursor.num_scheduled_tokens_cpu.dtype == torch.int32
        return super().chunks(hidden_states, cursor)


@bad("accepts-valid-input", "values", serves=("LAST",))
class Int64Only(Last):
    """`gather` is made for int64 indices: int32 offsets are refused by some releases of torch, misread by others."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        last = cursor.last_token_indices_gpu[:, None].expand(-1, hidden_states.shape[1])
        return hidden_states.gather(0, last)


@bad("accepts-valid-input", serves=("CLS", "LAST"))
class EmptyBatchUnforeseen(HostSplit):
    """`stack` takes no empty list."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        return torch.stack([chunk[-1] for chunk in self._cut(hidden_states, metadata)])

    def pool_cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        self._refuse_partial_prefill(metadata, "CLS")
        return torch.stack([chunk[0] for chunk in self._cut(hidden_states, metadata)])


@bad("accepts-valid-input")
class ThroughNumpy(HostSplit):
    """Rows pass through NumPy, which has no bfloat16."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        return super().chunks(torch.from_numpy(hidden_states.numpy().copy()), cursor)


@bad("row-count", serves=("LAST",))
class ListsInsteadOfTensors(HostSplit):
    """Results are made ready for JSON one layer too early."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        return super().pool_last(hidden_states, metadata).tolist()


@bad("row-count")
class OneTokenSqueezed(HostSplit):
    """`squeeze` was meant for a batch dimension of one, and takes a prompt of one token as well."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_all(hidden_states, metadata)
        return [rows if rows is None else rows.squeeze(0) for rows in outputs]


@bad("one-output-per-request", "row-count", serves=("LAST",))
class BatchSqueezed(Last):
    """`squeeze` was meant for a single request, whose caller wanted a vector."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        return super().pool_last(hidden_states, metadata).squeeze()


@bad("row-count", serves=("LAST",))
class MatrixForAVector(Last):
    """`[-1:]` keeps the dimension that `[-1]` drops."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        return [row[None] for row in super().pool_last(hidden_states, metadata)]


@bad("accepts-valid-input", serves=("STEP",))
class NoTagRefused(Steps):
    """A prompt without a step is taken for a client's mistake, and ends the engine."""

    def tagged(self, ids: torch.Tensor, tag: int) -> torch.Tensor:
        found = ids == tag
        if not found.any():
            raise ValueError(f"no token {tag} in the prompt")
        return found


@bad("accepts-valid-input", serves=("LAST",))
class RoomForTwentyRequests(Last):
    """Room for the results is made once, for as many requests as the author's server took."""

    room = 20

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        rows = super().rows_at(hidden_states, cursor)
        results = rows.new_empty(self.room, rows.shape[1])
        results[: len(rows)] = rows
        return results[: len(rows)]


@bad("accepts-valid-input", serves=("LAST",))
class RoomForTwoHundredRequests(RoomForTwentyRequests):
    """The same with a limit that is out of date since the default of `max_num_seqs` was raised."""

    room = 200
