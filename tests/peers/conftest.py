"""Peers run as a campaign's subjects do: on one thread, without gradients."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _as_in_campaigns() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
