"""vLLM releases for tests: fetched if they are few, taken from the cache if there are any more."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from impl.config import Subject, SubjectError
from impl.loading import load
from impl.vllm import fetch

FETCHED: Final = ("0.11.0", "0.13.0", "0.20.2", "0.33.0")
"""One for each shape of the layer, and those of which a fault is known; each is a download of some 400 MB."""


@cache
def _subject(version: str) -> Subject | str:
    try:
        return load(f"vllm=={version}")
    except SubjectError as error:
        return str(error)


def release(version: str) -> Subject:
    """A release as a subject; the test is skipped where it can't be had.

    Wheels are large, so nothing is fetched unless $POOLPROOF_FETCH asks for it, as CI does for a few, or
    $POOLPROOF_MUSEUM for all.
    """
    wanted = "POOLPROOF_MUSEUM" in os.environ or (version in FETCHED and "POOLPROOF_FETCH" in os.environ)
    if not wanted and not (fetch.cache() / f"vllm-{version}").exists():
        pytest.skip(f"vLLM {version} is not in the cache; `poolproof check --subject vllm=={version}` fetches it")
    subject = _subject(version)
    if isinstance(subject, str):
        if "can't download" not in subject:
            pytest.fail(subject)
        pytest.skip(subject)
    return subject


def newest_cached() -> tuple[str, Path] | None:
    """Version and directory of the newest release in the cache; nothing is fetched."""
    there = {path.name.removeprefix("vllm-"): path for path in fetch.cache().glob("vllm-*")}
    newest = max(there, key=lambda version: [int(part) for part in re.findall(r"\d+", version)], default=None)
    return None if newest is None else (newest, there[newest])
