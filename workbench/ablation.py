"""Interventions as frozen values: what replaces the output of which parts, where, printed, compared, stored.

A value holds no tensor of a pass and changes nothing by itself; :mod:`workbench.measure` carries it out. A head's
output is its "z", the weighted values ``[batch pos head d_head]``; an MLP's is what it writes, ``[batch pos d_model]``.
Whatever is computed after it is computed anew, but for what a mode of the whole holds at its clean value:

* frozen patterns: every attention pattern of the model, so that only the direct effect of what is written remains;
* frozen norm: the scale of the final norm, so that what is written reaches the logits linearly.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from workbench.components import (
    Head,
    Mlp,
    Part,
    Parts,
    all_heads,
    all_parts,
    as_parts,
    expand,
    part_names,
)
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name
from workbench.places import Place
from workbench.reference import Pairing, ReferenceSet


class Intervention(ABC):
    """A change to a pass. ``a + b`` is both at once."""

    frozen_patterns: bool
    frozen_norm: bool
    replaces: ClassVar[bool] = True
    """Whether the whole output of its targets is replaced, and not what they write on one path."""

    @property
    @abstractmethod
    def semantics(self) -> str:
        """What is replaced by what, as a sentence for the page without its full stop."""

    @abstractmethod
    def targets(self, config: ModelConfig) -> tuple[Head | Mlp, ...]:
        """The parts whose output (for a cut path: whose write on that path) is replaced in a model of this shape."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data; references and pairings by spec and hash. ``interventions.from_json`` reads it back."""

    def __str__(self) -> str:
        return self.semantics

    def __add__(self, other: Intervention) -> Joint:
        return Joint((self, other))


@dataclass(frozen=True, repr=False)
class _Replace(Intervention):
    """The output of a set of parts is replaced.

    Attributes:
        parts: heads, MLPs, layers. at: named positions or indices at which it is; none for everywhere.
        frozen_patterns, frozen_norm: modes of the whole.
    """

    parts: Parts
    _: KW_ONLY
    frozen_patterns: bool = False
    frozen_norm: bool = False
    at: Place | Sequence[Place] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", as_parts(self.parts))
        object.__setattr__(self, "at", _places(self.at))

    @property
    @abstractmethod
    def replacement(self) -> str:
        """What stands in for the output, as words."""

    @property
    def semantics(self) -> str:
        return f"{_output(self.parts)} replaced by {self.replacement}{_where(_places(self.at))}{_modes(self)}"

    def targets(self, config: ModelConfig) -> tuple[Head | Mlp, ...]:
        return expand(as_parts(self.parts), config)

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "parts": _list(self.parts), "at": list(_places(self.at)), **_flags(self)}

    def __repr__(self) -> str:
        names = part_names(as_parts(self.parts))
        return f"{type(self).__name__}({names}; {self.replacement}{_where(_places(self.at))}{_modes(self)})"


@dataclass(frozen=True, repr=False)
class Zero(_Replace):
    """The output is 0."""

    @property
    def replacement(self) -> str:
        return "zero"


@dataclass(frozen=True, repr=False)
class Mean(_Replace):
    """The output is its mean over a reference set."""

    reference: ReferenceSet

    @property
    def replacement(self) -> str:
        return f"its {self.reference.describe()}"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "reference": self.reference.to_json()}


@dataclass(frozen=True, repr=False)
class Resample(_Replace):
    """The output is that of the paired other sequence of the same batch, at the same position, in a clean pass."""

    pairing: Pairing

    @property
    def replacement(self) -> str:
        return f"that of another sequence ({self.pairing.describe()})"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "pairing": self.pairing.to_json()}


Among = Literal["heads", "parts"]


@dataclass(frozen=True, repr=False)
class KeepOnly(Intervention):
    """Everything but ``parts`` is replaced, ``by`` a way without parts of its own: ``KeepOnly(s, Mean((), ref))``.

    Attributes:
        among: what "everything" is: all heads (the MLPs stay), or all parts, heads and MLPs.
    """

    parts: Parts
    by: Zero | Mean | Resample
    _: KW_ONLY
    frozen_patterns: bool = False
    frozen_norm: bool = False
    among: Among = "heads"

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", as_parts(self.parts))
        if not isinstance(self.by, Zero | Mean | Resample) or self.by != _bare(self.by):
            raise WorkbenchError(
                "keep-only takes a way of replacing, without parts, places or modes of its own",
                expected="Zero(()), Mean((), reference) or Resample((), pairing)",
                got=repr(self.by),
            )
        if self.among not in ("heads", "parts"):
            raise unknown_name("keep-only among", self.among, ("heads", "parts"))
        if self.among == "heads" and not all(isinstance(p, Head) for p in as_parts(self.parts)):
            raise WorkbenchError(
                "keep-only among heads keeps heads",
                expected='heads, or among="parts"',
                got=part_names(as_parts(self.parts)),
            )

    @property
    def semantics(self) -> str:
        kept = part_names(as_parts(self.parts))
        every = "z of every head" if self.among == "heads" else "the output of every head and MLP"
        return f"{every} but {kept} replaced by {self.by.replacement}{_modes(self)}"

    def targets(self, config: ModelConfig) -> tuple[Head | Mlp, ...]:
        kept = expand(as_parts(self.parts), config)
        every = all_heads(config.n_layers, config.n_heads) if self.among == "heads" else all_parts(config)
        return tuple(p for p in every if p not in kept)

    def to_json(self) -> dict[str, Any]:
        names = _list(self.parts)
        return {"kind": "KeepOnly", "parts": names, "among": self.among, "by": self.by.to_json(), **_flags(self)}

    def __repr__(self) -> str:
        return f"KeepOnly({part_names(as_parts(self.parts))} of {self.among}; {self.by.replacement}{_modes(self)})"


@dataclass(frozen=True, repr=False)
class Joint(Intervention):
    """Several interventions in one pass, under the same modes; no part is replaced twice."""

    members: Sequence[Intervention]

    def __post_init__(self) -> None:
        flat: list[Intervention] = []
        for member in self.members:
            flat += member.members if isinstance(member, Joint) else [member]
        object.__setattr__(self, "members", tuple(flat))
        if not flat:
            raise WorkbenchError("a joint intervention has no members", expected="at least one", got="none")
        modes = {(m.frozen_patterns, m.frozen_norm) for m in flat}
        if len(modes) > 1:
            raise WorkbenchError(
                "interventions of different modes cannot be joined",
                expected="frozen patterns and frozen norm alike for all: they are modes of the whole pass",
                got="; ".join(map(repr, flat)),
            )

    @property
    def frozen_patterns(self) -> bool:  # type: ignore[override]
        """Of all members."""
        return self.members[0].frozen_patterns

    @property
    def frozen_norm(self) -> bool:  # type: ignore[override]
        """Of all members."""
        return self.members[0].frozen_norm

    @property
    def semantics(self) -> str:
        return "; ".join(member.semantics for member in self.members)

    def targets(self, config: ModelConfig) -> tuple[Head | Mlp, ...]:
        found: list[Head | Mlp] = []
        for member in self.members:
            found += member.targets(config)
        replaced = [t for m in self.members if m.replaces and not _placed(m) for t in m.targets(config)]
        twice = next((t for t in replaced if replaced.count(t) > 1), None)
        if twice is not None:
            raise WorkbenchError(
                "a joint intervention replaces a part twice", expected="each part in one member", got=str(twice)
            )
        return expand(found, config)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Joint", "members": [member.to_json() for member in self.members]}

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.members))


def _bare(by: Zero | Mean | Resample) -> Zero | Mean | Resample:
    """The same way of replacing, without parts, places or modes."""
    if isinstance(by, Zero):
        return Zero(())
    return Mean((), by.reference) if isinstance(by, Mean) else Resample((), by.pairing)


def _placed(member: Intervention) -> bool:
    return isinstance(member, _Replace) and bool(member.at)


def _places(at: Any) -> tuple[Place, ...]:
    """Places as a tuple, each once: indices first, then names; one alone stands for itself."""
    given = [at] if isinstance(at, str) or not isinstance(at, Iterable) else list(at)
    found: set[Place] = set()
    for place in given:
        try:
            found.add(place if isinstance(place, str) else operator.index(place))
        except TypeError:
            raise WorkbenchError(
                "a place cannot be read", expected="a named position or a whole number", got=repr(place)
            ) from None
    return tuple(sorted(found, key=lambda place: (isinstance(place, str), place)))


def _list(parts: Parts) -> list[str]:
    return [str(p) for p in as_parts(parts)]


def _output(parts: Parts) -> str:
    of: tuple[Part, ...] = as_parts(parts)
    return f"{'z' if all(isinstance(p, Head) for p in of) else 'the output'} of {part_names(of)}"


def _where(at: Sequence[Place]) -> str:
    return f" at {', '.join(map(str, at))}" if at else ""


def _flags(intervention: Intervention) -> dict[str, bool]:
    return {"frozen_patterns": intervention.frozen_patterns, "frozen_norm": intervention.frozen_norm}


def _modes(intervention: Intervention) -> str:
    patterns = ", every pattern held at its clean value" if intervention.frozen_patterns else ""
    return patterns + (", the final norm's scale held at its clean value" if intervention.frozen_norm else "")
