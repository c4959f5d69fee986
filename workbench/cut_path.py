"""Cutting the direct path from some heads to the queries, keys or values of later ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from workbench.ablation import Intervention
from workbench.components import Head, Heads, Mlp, as_heads, check_heads, part_names
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name
from workbench.reference import ReferenceSet

PathKind = Literal["Q", "K", "V"]
INPUTS: Mapping[str, str] = {"Q": "queries", "K": "keys", "V": "values"}


@dataclass(frozen=True, repr=False)
class CutPath(Intervention):
    """The direct path from the senders to the receivers' queries, keys or values is cut.

    That input of each receiver sees a residual stream in which the writes of the senders below it are replaced by their
    means over the reference, the norm computed anew on it. What the senders write to everything else stays.
    """

    kind: PathKind
    senders: Heads
    receivers: Heads
    reference: ReferenceSet

    frozen_patterns: ClassVar[bool] = False  # type: ignore[misc]
    frozen_norm: ClassVar[bool] = False  # type: ignore[misc]
    replaces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in INPUTS:
            raise unknown_name("path", self.kind, INPUTS)
        senders, receivers = as_heads(self.senders), as_heads(self.receivers)
        object.__setattr__(self, "senders", senders)
        object.__setattr__(self, "receivers", receivers)
        if senders and receivers and senders[0].layer >= receivers[-1].layer:
            raise WorkbenchError(
                "no path leads from the senders to the receivers",
                expected=f"a sender in a layer below {receivers[-1].layer}",
                got=part_names(senders),
            )

    @property
    def ends(self) -> tuple[tuple[Head, ...], tuple[Head, ...]]:
        """The senders that lie below some receiver, and the receivers that lie above some sender."""
        senders, receivers = as_heads(self.senders), as_heads(self.receivers)
        if not (senders and receivers):
            return (), ()
        top, bottom = receivers[-1].layer, senders[0].layer
        return tuple(h for h in senders if h.layer < top), tuple(h for h in receivers if h.layer > bottom)

    @property
    def semantics(self) -> str:
        return (
            f"the {INPUTS[self.kind]} of {_names(self.receivers)} read a residual stream in which the writes of "
            f"{_names(self.senders)} are replaced by their {self.reference.describe()}"
        )

    def targets(self, config: ModelConfig) -> tuple[Head | Mlp, ...]:
        senders, receivers = as_heads(self.senders), as_heads(self.receivers)
        check_heads((*senders, *receivers), config.n_layers, config.n_heads)
        if config.norm == "post":
            raise WorkbenchError(
                "cutting a path is not applicable to a post-norm model",
                expected="a residual stream that is a sum of writes (norm pre or none)",
                got="norm post",
            )
        if config.attention == "uniform" and self.kind != "V":
            raise WorkbenchError(
                f"there is no {self.kind} path",
                expected="learned attention",
                got="uniform attention, without queries and keys",
            )
        return self.ends[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "CutPath",
            "path": self.kind,
            "senders": [*map(str, as_heads(self.senders))],
            "receivers": [*map(str, as_heads(self.receivers))],
            "reference": self.reference.to_json(),
        }

    def __repr__(self) -> str:
        return f"CutPath({self.kind}: {_names(self.senders)} to {_names(self.receivers)}; {self.reference!r})"


def _names(heads: Heads) -> str:
    return part_names(as_heads(heads))
