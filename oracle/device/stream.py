"""The order in which the simulated device works, and copies that land late.

Kernels run at once, in the order in which they are launched. While `STREAM.late` is set, a non-blocking
copy from or to pinned memory lands at the latest moment that a device is free to choose: the next wait.

A download leaves its target as it was until then. An upload reads its source only then, so if the host
has rewritten the source in the meantime, the device's memory is put back to where it was at the upload
and everything launched since is run again on what it now finds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from oracle.device.pinned import is_pinned, mark
from oracle.device.record import place


@dataclass
class Work:
    """Something launched since the earliest copy that is still under way.

    `again` repeats it, on whatever is there by then; `before` holds what it overwrote.
    """

    again: Callable[[], object]
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    find: Callable[[], torch.Tensor] | None = None
    """Of an upload: what the device would find in its source now."""
    seen: torch.Tensor | None = None
    """What it found when the upload was asked for."""
    place: str = ""
    lands: tuple[torch.Tensor, torch.Tensor] | None = None
    """Of a download: its target, and the data that is on the way there."""

    @property
    def was_rewritten(self) -> bool:
        """Whether the host changed the source of an upload that had not landed."""
        return self.find is not None and self.seen is not None and not _same_bytes(self.find(), self.seen)

    def undo(self) -> None:
        """Put back what it overwrote."""
        _assign(self.before)

    def redo(self) -> None:
        """Do it again."""
        self.before = _with_contents([target for target, _ in self.before])
        if self.find is not None:
            self.seen = self.find().clone()
        self.again()


class RewrittenSourceError(RuntimeError):
    """What was launched can't be run on what the host left in the source of an upload."""


class Stream:
    """What was launched and has not landed."""

    def __init__(self) -> None:
        self.late = False
        self._under_way: list[Work] = []
        self._landed = 0

    def launch(self, run: Callable[..., Any], *args: Any, writes: Sequence[torch.Tensor] = (), **kwargs: Any) -> Any:
        """Run a kernel on the memory behind device tensors; `writes` is what it changes there."""
        if not self._under_way:
            return run(*args, **kwargs)
        before = _with_contents(writes)
        result = run(*args, **kwargs)
        made = () if writes else _tensors(result)

        def again() -> None:
            for target, value in zip(made, _tensors(run(*args, **kwargs)), strict=False):
                target.copy_(value)

        self._under_way.append(Work(again, before))
        return result

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """A non-blocking copy to the device.

        It is late from pinned memory alone: from elsewhere, or where it must be converted, the driver
        takes the bytes before the call returns.
        """
        if self.late and is_pinned(source) and source.dtype == target.dtype and source.is_contiguous():
            earlier = [work for work in self._under_way if work.lands and _share(work.lands[0], source)]

            def find() -> torch.Tensor:
                """What is in the source, with the downloads that the device puts there before it reads."""
                landings = [
                    work.lands for work in self._under_way if work.lands and any(work is one for one in earlier)
                ]
                before = _with_contents([at for at, _ in landings])
                _assign(landings)
                found = source.clone() if landings else source
                _assign(before)
                return found

            found = find().clone()
            before = _with_contents([target])
            self._under_way.append(Work(lambda: target.copy_(find()), before, find, found, place()))
            target.copy_(found)
        else:
            target.copy_(source)

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """A non-blocking copy to pinned host memory."""
        if not self.late:
            target.copy_(source)
            return
        staged = source.clone()
        self._under_way.append(Work(lambda: staged.copy_(source), lands=(target, staged)))

    def landing_ground(self, source: torch.Tensor, **options: Any) -> torch.Tensor:
        """Pinned host memory for a download; until that lands it holds what no result should."""
        target = mark(torch.empty_like(source, **options))
        return target.fill_(_unlikely(target.dtype)) if self.late else target

    def position(self) -> int:
        """How much was launched so far."""
        return self._landed + len(self._under_way)

    def is_done(self, position: int) -> bool:
        """Whether what was launched before a position has landed."""
        return position <= self._landed

    def land(self, position: int | None = None) -> list[str]:
        """Wait for the device, or for what was launched before a position.

        Returns:
            Where uploads were asked for whose source the host rewrote before they landed.

        Raises:
            RewrittenSourceError: with what they brought, a kernel failed.
        """
        if not self._under_way:
            return []
        done = self._under_way if position is None else self._under_way[: max(0, position - self._landed)]
        rewritten = [work.place for work in done if work.was_rewritten]
        # What was made in inference mode may be written to in inference mode only.
        with torch.inference_mode():
            if rewritten:
                for work in reversed(self._under_way):
                    work.undo()
                self._redo(rewritten)
            _assign([work.lands for work in done if work.lands])
        self._landed += len(done)
        self._under_way = self._under_way[len(done) :]
        return rewritten

    def discard(self) -> None:
        """Forget what has not landed."""
        self._landed = self.position()
        self._under_way = []

    def _redo(self, rewritten: Sequence[str]) -> None:
        try:
            for work in self._under_way:
                work.redo()
        except Exception as error:
            self.discard()
            raise RewrittenSourceError(
                f"the host rewrote the source of an upload under way ({', '.join(rewritten)}), and on what the device "
                f"then found a kernel failed: {type(error).__name__}: {error}"
            ) from error


STREAM: Final = Stream()


@contextmanager
def late_copies(late: bool = True) -> Iterator[None]:
    """While this is on, non-blocking copies land late; what has not landed by its end never will."""
    before, STREAM.late = STREAM.late, late
    try:
        yield
    finally:
        STREAM.discard()
        STREAM.late = before


Contents = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Tensors, each with what is or should be in it."""


def _with_contents(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(tensor, tensor.clone()) for tensor in tensors]


def _assign(contents: Contents) -> None:
    for target, value in contents:
        target.copy_(value)


def _share(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()


def _tensors(result: Any) -> Sequence[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return (result,)
    return [item for item in result if isinstance(item, torch.Tensor)] if isinstance(result, (list, tuple)) else ()


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def _unlikely(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return float("nan")
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max
