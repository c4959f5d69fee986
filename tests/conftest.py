"""Shapes and types in every signature are enforced while the tests run; and one thread, so that numbers repeat."""

from __future__ import annotations

import jaxtyping

# Before anything of the product is imported: the hook rewrites modules as they load.
jaxtyping.install_import_hook(["workbench", "tasks", "analyses"], "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)
