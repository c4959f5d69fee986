"""Interventions as frozen values: what replaces the z of which heads, printed, compared, stored.

A value holds no tensor of a pass and changes nothing by itself; :mod:`workbench.measure` carries it out. "z" is a
head's weighted values, ``[batch pos head d_head]``; whatever is computed after it is computed anew, unless patterns are
frozen: then every pattern of the model is held at its clean value, and only the direct effect of what the heads write
remains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from workbench.components import Head, all_heads, as_heads, check_heads, head_names
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name
from workbench.reference import Pairing, ReferenceSet

Heads = str | Head | Iterable[str | Head]
"""How heads are given: ``"L1.H0"``, ``"L0.H0, L1.H0"``, Heads, or any mixture. Kept as a sorted tuple of Heads."""


class Intervention(ABC):
    """A change to a pass."""

    frozen_patterns: bool

    @property
    @abstractmethod
    def semantics(self) -> str:
        """What is replaced by what, as a sentence for the page without its full stop."""

    @abstractmethod
    def targets(self, config: ModelConfig) -> tuple[Head, ...]:
        """The heads whose z (for a cut path: whose write on that path) is replaced in a model of this shape."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data; references and pairings by spec and hash. :func:`intervention_from_json` reads it back."""

    def __str__(self) -> str:
        return self.semantics


@dataclass(frozen=True, repr=False)
class _Replace(Intervention):
    """The z of a set of heads is replaced."""

    heads: Heads

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", as_heads(self.heads))

    @property
    @abstractmethod
    def replacement(self) -> str:
        """What stands in for z, as words."""

    @property
    def semantics(self) -> str:
        return f"z of {_names(self.heads)} replaced by {self.replacement}{_frozen(self)}"

    def targets(self, config: ModelConfig) -> tuple[Head, ...]:
        heads = as_heads(self.heads)
        check_heads(heads, config.n_layers, config.n_heads)
        return heads

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "heads": _list(self.heads), "frozen_patterns": self.frozen_patterns}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_names(self.heads)}; {self.replacement}{_frozen(self)})"


@dataclass(frozen=True, repr=False)
class Zero(_Replace):
    """z is 0."""

    frozen_patterns: bool = False

    @property
    def replacement(self) -> str:
        return "zero"


@dataclass(frozen=True, repr=False)
class Mean(_Replace):
    """z is its mean over a reference set."""

    reference: ReferenceSet
    frozen_patterns: bool = False

    @property
    def replacement(self) -> str:
        return f"its {self.reference.describe()}"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "reference": self.reference.to_json()}


@dataclass(frozen=True, repr=False)
class Resample(_Replace):
    """z is that of the paired other sequence of the same batch, at the same position, in a clean pass."""

    pairing: Pairing
    frozen_patterns: bool = False

    @property
    def replacement(self) -> str:
        return f"that of another sequence ({self.pairing.describe()})"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "pairing": self.pairing.to_json()}


@dataclass(frozen=True, repr=False)
class KeepOnly(Intervention):
    """Everything but ``heads`` is replaced, ``by`` a way without heads of its own: ``KeepOnly(s, Mean((), ref))``."""

    heads: Heads
    by: Zero | Mean | Resample
    frozen_patterns: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", as_heads(self.heads))
        if self.by.heads or self.by.frozen_patterns:
            raise WorkbenchError(
                "keep-only takes a way of replacing, without heads of its own",
                expected="Zero(()), Mean((), reference) or Resample((), pairing)",
                got=repr(self.by),
            )

    @property
    def semantics(self) -> str:
        return f"z of every head but {_names(self.heads)} replaced by {self.by.replacement}{_frozen(self)}"

    def targets(self, config: ModelConfig) -> tuple[Head, ...]:
        kept = as_heads(self.heads)
        check_heads(kept, config.n_layers, config.n_heads)
        return tuple(h for h in all_heads(config.n_layers, config.n_heads) if h not in kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "KeepOnly",
            "heads": _list(self.heads),
            "by": self.by.to_json(),
            "frozen_patterns": self.frozen_patterns,
        }

    def __repr__(self) -> str:
        return f"KeepOnly({_names(self.heads)}; {self.by.replacement}{_frozen(self)})"


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
                got=head_names(senders),
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

    def targets(self, config: ModelConfig) -> tuple[Head, ...]:
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
            "senders": _list(self.senders),
            "receivers": _list(self.receivers),
            "reference": self.reference.to_json(),
        }

    def __repr__(self) -> str:
        return f"CutPath({self.kind}: {_names(self.senders)} to {_names(self.receivers)}; {self.reference!r})"


def intervention_from_json(data: Mapping[str, Any], references: Mapping[str, ReferenceSet]) -> Intervention:
    """The intervention that ``to_json`` wrote.

    Args:
        references: the reference sets at hand, by hash.

    Raises:
        WorkbenchError: an unknown kind, a reference that is not at hand, or a pairing that comes out differently.
    """

    def reference(stored: Mapping[str, Any]) -> ReferenceSet:
        if stored["hash"] not in references:
            raise WorkbenchError(
                "the reference set of a stored intervention is not at hand",
                expected=stored["hash"][:12],
                got=", ".join(h[:12] for h in references) or "none",
                next_step="Build it again from its task, split, seed and size.",
            )
        return references[stored["hash"]]

    kind = str(data.get("kind"))
    if kind == "CutPath":
        return CutPath(
            data["path"], as_heads(data["senders"]), as_heads(data["receivers"]), reference(data["reference"])
        )
    if kind not in ("Zero", "Mean", "Resample", "KeepOnly"):
        raise unknown_name("intervention", kind, ("Zero", "Mean", "Resample", "KeepOnly", "CutPath"))
    heads, frozen = as_heads(data["heads"]), bool(data["frozen_patterns"])
    if kind == "Zero":
        return Zero(heads, frozen)
    if kind == "Mean":
        return Mean(heads, reference(data["reference"]), frozen)
    if kind == "Resample":
        pairing = Pairing(data["pairing"]["n"], data["pairing"]["seed"])
        if pairing.hash != data["pairing"]["hash"]:
            raise WorkbenchError(
                "a stored pairing comes out differently", expected=data["pairing"]["hash"][:12], got=pairing.hash[:12]
            )
        return Resample(heads, pairing, frozen)
    by = intervention_from_json(data["by"], references)
    assert isinstance(by, Zero | Mean | Resample)
    return KeepOnly(heads, by, frozen)


def _list(heads: Heads) -> list[str]:
    return [str(h) for h in as_heads(heads)]


def _names(heads: Heads) -> str:
    return head_names(as_heads(heads))


def _frozen(intervention: Intervention) -> str:
    return ", every pattern held at its clean value" if intervention.frozen_patterns else ""
