"""Files that are either whole or absent: atomic writes, content hashes, tensors as safetensors and nothing else.

Weights are read only from the safetensors format, which holds numbers and no code. A pickle (what ``torch.save``
writes) can run any program when it is loaded, so it is recognised and refused, never opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from workbench.errors import WorkbenchError

PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


def canonical_json(value: Any) -> bytes:
    """The one text of a JSON value: keys sorted, no spaces, plain ASCII, no NaN. What is hashed is this.

    Raises:
        WorkbenchError: a number that is not finite, or nesting without end. TypeError: what is no plain data.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise WorkbenchError("a value has no place in JSON", expected="finite, plain data", got=error) from error


def plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples are lists, keys are texts. Errors as :func:`canonical_json`."""
    return json.loads(canonical_json(value))


def sha256(data: bytes) -> str:
    """The content hash as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def unwritable(path: Path, error: OSError) -> WorkbenchError:
    """The error for a path that the system does not let us write."""
    return WorkbenchError(
        f"{path} cannot be written", got=error.strerror or error, next_step="Choose another folder, or mend this one."
    )


def make_folder(path: Path) -> None:
    """Create a folder and its parents; one that exists is fine.

    Raises:
        WorkbenchError: the system refuses, or a file stands in the way.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def write_atomic(path: Path, data: bytes) -> str:
    """Write a file under a temporary name beside it, then rename: whoever looks sees the old file or the whole new one.

    The temporary name is fixed, so that a killed write is overwritten by the next one and leaves nothing behind.

    Returns:
        The content hash.

    Raises:
        WorkbenchError: the system refuses (no permission, disk full).
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error
    rename(temporary, path)
    return sha256(data)


def write_json(path: Path, value: Any) -> str:
    """Write a JSON value for people to read (indented, keys in the order given); returns the file's hash."""
    return write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON value in a file, or the error that names the file."""
    try:
        return parse_json(path, path.read_bytes())
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be read", expected="a JSON file", got=error) from error


def parse_json(path: Path, data: bytes) -> Any:
    """The JSON value in the content of a file, or the error that names the file."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WorkbenchError(f"{path} cannot be read", expected="a JSON file", got=error) from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: str = "") -> str:
    """Write tensors as safetensors, from whatever device; returns the file's hash.

    ``note`` goes into the header's metadata. The same tensors and note give the same bytes.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return write_atomic(path, safetensors.torch.save(plain, {"note": note} if note else None))


def read_bytes(path: Path) -> bytes:
    """A file's content, or the error that names the file; a pickle in its place is named as such."""
    try:
        return path.read_bytes()
    except OSError as error:
        pickles = sorted(p.name for p in path.parent.glob(f"{path.stem}.*") if p.suffix in PICKLE_SUFFIXES)
        refused = f"{pickles[0]} beside it is a pickle and is never loaded." if pickles else ""
        raise WorkbenchError(f"{path} cannot be read", got=error.strerror or error, next_step=refused) from error


def parse_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file.

    Raises:
        WorkbenchError: a pickle (refused without loading it), or a damaged or truncated file.
    """
    # Byte 8 of a safetensors file opens its JSON header; a zip or pickle has something else there.
    if data[8:9] != b"{" and data[:2] in (b"PK", *(bytes([0x80, protocol]) for protocol in range(2, 6))):
        raise WorkbenchError(
            f"{path} is refused", expected="safetensors", got="a pickle, which can run code when it is loaded"
        )
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise WorkbenchError(
            f"{path} is damaged or truncated", expected="a whole safetensors file", got=error
        ) from error


def read_note(path: Path, data: bytes) -> str:
    """The note that :func:`write_tensors` put into the header."""
    try:
        return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["note"]
    except (KeyError, ValueError, RecursionError) as error:
        raise WorkbenchError(f"{path} is not one of ours", expected="a note in its header", got="none") from error


def rename(old: Path, new: Path) -> None:
    """Give a file or folder its name, in one step."""
    try:
        os.replace(old, new)
    except OSError as error:
        raise unwritable(new, error) from error


def remove_folder(path: Path) -> None:
    """Remove one of our own folders, if it is there."""
    if path.exists():
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise unwritable(path, error) from error


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder against a second process that would write the same files; the system frees it if we die.

    Raises:
        WorkbenchError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system: there the folder goes unguarded
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise WorkbenchError(
            f"{folder} is in use", got="another process that trains into it", next_step="Wait for it, or stop it."
        ) from error
    except OSError:  # a file system without locks: likewise unguarded
        pass
    try:
        yield
    finally:
        os.close(handle)
