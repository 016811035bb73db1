"""The HTTP server, in its own processes on loopback, gives the same vectors to one client and to many."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.smoke.tiny import BLOCK_SIZE, MAX_MODEL_LEN, PROMPTS, TASKS, Rows, wrong

TOKEN_BUDGET: Final = 8
STARTS_WITHIN_S: Final = 300
Ask = Callable[[str, Any], Any]


@pytest.fixture(params=TASKS)
def server(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[tuple[str, Ask]]:
    """A server for one task, and what asks it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model": model,
        "served-model-name": "tiny",
        "runner": "pooling",
        "pooler-config": json.dumps({"task": request.param}),
        "dtype": "float32",
        "max-model-len": MAX_MODEL_LEN,
        "max-num-batched-tokens": TOKEN_BUDGET,
        "max-num-seqs": 4,
        "block-size": BLOCK_SIZE,
        "kv-cache-memory-bytes": 1 << 20,
        "gpu-memory-utilization": 0.05,
        "host": "127.0.0.1",
        "port": port,
    }
    # The `vllm` command of this build looks for the metadata of another package than its own, and ends.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    log = tmp_path / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def ask(path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
        with urllib.request.urlopen(asked, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    try:
        _wait_until_up(process, ask, log)
        yield request.param, ask
    finally:
        _end(process)


def _wait_until_up(process: subprocess.Popen[bytes], ask: Ask, log: Path) -> None:
    patience = time.monotonic() + STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < patience:
        try:
            ask("/health", None)
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not come up:\n{log.read_text()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it has started: its group is its own."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answer(task: str, ask: Ask, prompt: list[int]) -> Rows:
    """The server's result for one prompt."""
    path, asked = ("/v1/embeddings", {}) if task == "embed" else ("/pooling", {"task": task})
    (result,) = ask(path, {"model": "tiny", "input": [prompt], "encoding_format": "float", **asked})["data"]
    return np.array(result["embedding" if task == "embed" else "data"], dtype=np.float64)


def test_vectors_depend_on_the_prompt_alone(server: tuple[str, Ask], due: dict[str, list[Rows]]) -> None:
    task, ask = server
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        together = list(clients.map(lambda prompt: answer(task, ask, prompt), PROMPTS))
    alone = [answer(task, ask, prompt) for prompt in PROMPTS]
    assert wrong(due[task], together) == []
    assert wrong(due[task], alone) == []
