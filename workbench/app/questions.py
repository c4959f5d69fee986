"""What a page may ask of a served model, read strictly: every field is known, of its type, and within the model.

A question names parts, tokens and positions; none names a file, and a field that is not listed here is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from workbench.components import Head, all_heads, all_parts
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name

FIELDS: Mapping[str, tuple[str, ...]] = {
    "load": (),
    "agreement": (),
    "sequence": ("sequence", "head", "change"),
    "score": ("change",),
    "draw": (),
}
"""What each kind of question holds, beside ``id``, ``kind`` and ``draw``."""

MOST_DRAWS = 10**9


class Unreadable(WorkbenchError):
    """A request that is no question at all."""


@dataclass(frozen=True)
class Question:
    """A request: its number, its kind, the draw of samples that it is about, and its fields, not yet checked."""

    id: int
    kind: str
    draw: int
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class AskedSequence:
    """A sequence to look at.

    Attributes:
        tokens: ids. mask: True where a token is real. places: named positions. donor: the sample that it is paired
            with, None without one.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    places: tuple[tuple[str, int], ...]
    donor: int | None


def read(body: bytes) -> Question:
    """The question of a request's body.

    Raises:
        Unreadable: no JSON object, an unknown kind or field, or a number that is none.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable("the request is not JSON", expected="one JSON object", got=str(error)[:100]) from error
    if not isinstance(asked, dict):
        raise Unreadable("the request is not a question", expected="one JSON object", got=type(asked).__name__)
    kind = asked.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise Unreadable("the request has no kind that is known", expected=", ".join(FIELDS), got=_short(kind))
    known = {"id", "kind", "draw", *FIELDS[kind]}
    for name in asked:
        if name not in known:
            raise Unreadable(f"{kind} has no field {_short(name)}", expected=", ".join(sorted(known)))
    for name in FIELDS[kind]:
        if name not in asked:
            raise Unreadable(f"{kind} lacks its field {name!r}")
    number, draw = asked.get("id"), asked.get("draw", 0)
    if not _whole(number):
        raise Unreadable("the request has no id", expected="a whole number", got=_short(number))
    if not _whole(draw) or not 0 <= draw <= MOST_DRAWS:
        raise Unreadable("draw cannot be used", expected=f"a whole number from 0 to {MOST_DRAWS}", got=_short(draw))
    return Question(number, kind, draw, {name: asked[name] for name in FIELDS[kind]})


def head_of(value: Any, config: ModelConfig) -> Head:
    """The head of this name; one that does not exist is an error."""
    heads = {str(head): head for head in all_heads(config.n_layers, config.n_heads)}
    if not isinstance(value, str) or value not in heads:
        raise unknown_name("head", _plain(value), heads)
    return heads[value]


def change_of(value: Any, config: ModelConfig) -> dict[str, Any]:
    """A change whose parts exist; states, and positions in the sequences, are judged where it is carried out."""
    change = _object("change", value, ("states", "frozen", "at"))
    states, frozen, at = change.get("states"), change.get("frozen", False), change.get("at", [])
    if not isinstance(states, dict) or not all(isinstance(state, str) for state in states.values()):
        raise WorkbenchError("the change's states cannot be used", expected="a state for each part", got=_short(states))
    parts = {str(part) for part in all_parts(config)}
    for part in states:
        if part not in parts:
            raise unknown_name("part", _plain(part), parts)
    if not isinstance(frozen, bool):
        raise WorkbenchError("frozen cannot be used", expected="true or false", got=_short(frozen))
    if not isinstance(at, list) or not all(_whole(place) or isinstance(place, str) for place in at):
        raise WorkbenchError("the change's positions cannot be used", expected="a list of positions", got=_short(at))
    return {"states": states, "frozen": frozen, "at": at}


def sequence_of(value: Any, config: ModelConfig, samples: int) -> AskedSequence:
    """A sequence that the model can read.

    Args:
        samples: how many there are to be paired with.
    """
    given = _object("sequence", value, ("tokens", "mask", "places", "donor"))
    tokens, mask, places, donor = given.get("tokens"), given.get("mask"), given.get("places") or {}, given.get("donor")
    expected = f"1 to {config.n_ctx} tokens"
    if not isinstance(tokens, list):
        raise WorkbenchError("the sequence cannot be used", expected=expected, got=_short(tokens))
    if not 1 <= len(tokens) <= config.n_ctx:
        raise WorkbenchError("the sequence does not fit the model", expected=expected, got=len(tokens))
    for token in tokens:
        if not _whole(token) or not 0 <= token < config.d_vocab:
            raise WorkbenchError(
                "a token lies outside the vocabulary", expected=f"ids from 0 to {config.d_vocab - 1}", got=_short(token)
            )
    n = len(tokens)
    mask = [1] * n if mask is None else mask
    # True == 1 and 1.0 == 1 mean the same here.
    if not isinstance(mask, list) or len(mask) != n or any(m not in (0, 1) for m in mask) or not any(mask):
        raise WorkbenchError(
            "the sequence's mask cannot be used", expected=f"0 or 1 for each of {n} tokens, one of them 1"
        )
    if not isinstance(places, dict) or not all(_whole(at) and 0 <= at < n for at in places.values()):
        raise WorkbenchError("the sequence's places cannot be used", expected=f"positions from 0 to {n - 1}")
    if donor is not None and not (_whole(donor) and 0 <= donor < samples):
        raise WorkbenchError("the paired sequence does not exist", expected=f"0 to {samples - 1}", got=_short(donor))
    return AskedSequence(tuple(tokens), tuple(map(bool, mask)), tuple(places.items()), donor)


def _object(name: str, value: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WorkbenchError(f"{name} cannot be used", expected="an object", got=_short(value))
    for field in value:
        if field not in fields:
            raise WorkbenchError(f"{name} has no field {_short(field)}", expected=", ".join(fields))
    return value


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> str:
    return value[:60] if isinstance(value, str) else _short(value)


def _short(value: Any) -> str:
    """A value for a sentence, however large it is."""
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
