"""Colours of the page and its drawings, for light and dark.

A drawing is made once, in stand-in colours that name a role (``ink``, level 37 of the sequential map); afterwards
each stand-in becomes a CSS variable, so that the same drawing follows the page's theme. Colour maps are lines in
CIELAB walked in equal steps (CIE 1976 difference), so equal steps in value look equal; the hues (blue, orange) are
told apart by people with any of the common colour-vision deficiencies. Positive is blue, negative orange.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

LEVELS = 101
Theme = str
_ROLES = ("ink", "soft", "line", "card", "accent", "muted", "bad", "c1", "c2", "c3", "c4", "c5", "c6")
SERIES_ROLES = ("c1", "c2", "c3", "c4", "c5", "c6")
_MAPS = ("sequential", "diverging")
_DARK_TEXT, _LIGHT_TEXT = "#000000", "#ffffff"

# Anchors in CIELAB (lightness, a, b).
_SEQUENTIAL = {
    "light": [(97, -1, -2), (64, -6, -36), (22, 10, -42)],
    "dark": [(17, -1, -4), (50, -4, -36), (88, -6, -20)],
}
_DIVERGING = {
    "light": [(42, 42, 52), (72, 24, 42), (97, 0, 0), (66, -6, -32), (34, 4, -46)],
    "dark": [(82, 16, 40), (50, 32, 44), (17, -1, -3), (52, -3, -38), (84, -8, -26)],
}


def stand_in(role: str) -> str:
    """The colour that stands for a role of the theme in a drawing."""
    return f"#0101{_ROLES.index(role):02x}"


def level_stand_ins(kind: str) -> list[str]:
    """The ``LEVELS`` colours that stand for a colour map's levels in a drawing."""
    return [f"#{2 + _MAPS.index(kind):02x}01{level:02x}" for level in range(LEVELS)]


def text_stand_in(kind: str, level: int) -> str:
    """The colour that stands for legible text on a level of a colour map."""
    return f"#{4 + _MAPS.index(kind):02x}01{level:02x}"


def to_variables(style: str) -> str:
    """A style in which each stand-in has become its CSS variable."""
    return re.sub(r"#(0[1-5])01([0-9a-f]{2})\b", _variable, style)


def _variable(match: re.Match[str]) -> str:
    kind, index = int(match[1]), int(match[2], 16)
    if kind == 1:
        return f"var(--{_ROLES[index]})"
    return f"var(--{'sdtu'[kind - 2]}{index})"


@cache
def ramp(kind: str, theme: Theme) -> tuple[str, ...]:
    """The ``LEVELS`` colours of a map, lowest value first, as hex."""
    if kind == "sequential":
        return tuple(_walk(_SEQUENTIAL[theme], LEVELS))
    anchors, half = _DIVERGING[theme], LEVELS // 2 + 1
    return tuple(_walk(anchors[:3], half)[:-1] + _walk(anchors[2:], half))


def variables(theme: Theme) -> str:
    """The CSS declarations of both maps and of the text upon them."""
    parts = []
    for kind, shade, ink in (("sequential", "s", "t"), ("diverging", "d", "u")):
        for level, colour in enumerate(ramp(kind, theme)):
            dark = contrast(colour, _DARK_TEXT) >= contrast(colour, _LIGHT_TEXT)
            parts.append(f"--{shade}{level}:{colour};--{ink}{level}:{_DARK_TEXT if dark else _LIGHT_TEXT}")
    return ";".join(parts)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two hex colours (WCAG 2), 1 to 21."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def rgb(colour: str) -> tuple[int, int, int]:
    """A hex colour as three whole numbers, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    channels = np.array(rgb(colour)) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _walk(anchors: Sequence[tuple[float, float, float]], count: int) -> list[str]:
    points = np.array(anchors, dtype=float)
    travelled = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    at = np.linspace(0, travelled[-1], count)
    lab = np.stack([np.interp(at, travelled, points[:, axis]) for axis in range(3)], axis=1)
    return [_lab_to_hex(row) for row in lab]


def _lab_to_hex(lab: np.ndarray) -> str:
    fy = (lab[0] + 16) / 116
    f = np.array([fy + lab[1] / 500, fy, fy - lab[2] / 200])
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * (0.95047, 1.0, 1.08883)
    to_rgb = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
    linear = np.clip(to_rgb @ xyz, 0, 1)
    channels = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(float(c) * 255):02x}" for c in np.clip(channels, 0, 1))
