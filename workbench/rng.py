"""Named, independent random streams from one seed.

A stream is addressed by a seed and a path of names, for instance ``stream(0, "train", 17)`` for the
18th training batch. The address is hashed, so neighbouring seeds and neighbouring names share nothing,
and a batch can be drawn again without drawing the ones before it: that is what lets a training that was
killed resume bitwise without storing any generator state.

All streams live on the CPU, whatever device computes: the same address gives the same numbers everywhere.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def stream_seed(seed: int, *names: str | int) -> int:
    """The 63-bit seed of the stream at this address (stable over versions and platforms)."""
    address = "\x1f".join([str(int(seed)), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(address.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int) -> torch.Generator:
    """A fresh torch generator (CPU) at the start of the stream at this address."""
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, *names))


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A fresh numpy generator at the start of the stream at this address."""
    import numpy as np

    return np.random.default_rng(stream_seed(seed, *names))
