"""What a training ran on. Recorded with the run, and not part of what was asked: device, threads, versions."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

from workbench.errors import WorkbenchError

MAX_THREADS = 1024
"""Above what any machine has; the thread pool dies of a number far beyond it."""
DEVICES = ("auto", "cpu", "cuda")
LIBRARIES = ("attention-workbench", "torch", "transformer-lens", "numpy", "safetensors")


def resolve_device(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA where there is one, else the CPU.

    Raises:
        WorkbenchError: another name, or "cuda" where there is none.
    """
    if name not in DEVICES:
        raise WorkbenchError("unknown device", expected=" or ".join(DEVICES), got=repr(name))
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise WorkbenchError("there is no CUDA device here", got=name, next_step="Use --device cpu or auto.")
    return torch.device("cuda" if there and name != "cpu" else "cpu")


@contextlib.contextmanager
def use_threads(n: int) -> Iterator[None]:
    """Compute on ``n`` threads inside, and on as many as before after it.

    Raises:
        WorkbenchError: ``n`` below 1 or above ``MAX_THREADS``.
    """
    if n < 1:
        raise WorkbenchError("threads cannot be used", expected="a whole number from 1", got=n)
    if n > MAX_THREADS:
        raise WorkbenchError("threads cannot be used", expected=f"at most {MAX_THREADS}", got=n)
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def execution_record(device: torch.device, threads: int, compiled: bool) -> dict[str, Any]:
    """Everything that the last bits of a result may depend on beside the spec."""
    return {
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "compile": compiled,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
    }
