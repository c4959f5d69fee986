"""Shapes and types in every signature are enforced while the tests run; and one thread, so that numbers repeat."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jaxtyping
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The tests keep their own certificates: what a user's cache holds must not decide them.
os.environ["WORKBENCH_CACHE"] = tempfile.mkdtemp(prefix="workbench-cache-")

# Before anything of the product is imported: the hook rewrites modules as they load.
jaxtyping.install_import_hook(["workbench", "tasks", "analyses"], "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium. Without one, what needs it is skipped and one line says so; where CI is set it fails."""
    chromium = shutil.which("chromium")
    if chromium is None:
        missing = "no chromium on the PATH: the pages go untested in a browser"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import expect, sync_playwright

    # How long a page may take on a busy machine is not what the tests are about: as patient as Playwright's own waits.
    expect.set_options(timeout=30_000)

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()
