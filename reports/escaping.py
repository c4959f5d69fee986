"""Text that came from elsewhere, made safe and visible: HTML, scripts, and tokens with their blanks shown."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from typing import Any

from workbench.findings_json import to_json

_CONTROL = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n\r"} | {0x7F: "\u2421"}
_WHITESPACE = {"\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "\u2421"}
_BLANK, _EMPTY, _CIRCLE = "·", "∅", "◌"
_JOINERS = "\u200c\u200d"
_RESERVED = frozenset("\\↵⇥⟨" + _BLANK + _EMPTY + _CIRCLE + "".join(map(chr, range(0x2400, 0x2424))))
_EMPHASIS = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def text(value: object) -> str:
    """A value as HTML text or as the value of a quoted attribute; control characters become visible."""
    shown = _SURROGATE.sub("\ufffd", str(value)).translate(_CONTROL)
    return html.escape(shown, quote=True)


def emphasised(value: str) -> str:
    """``text``, with ``**name**`` set off in bold; everything else stays literal."""
    return _EMPHASIS.sub(r"<b>\1</b>", text(value))


def script_json(data: Any) -> str:
    """JSON that can stand inside a script element: no tag, entity or line separator of its own; nan is null."""
    plain = json.dumps(to_json(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_source(source: str) -> str:
    """JavaScript that can stand inside a script element, without its pointer to a source map."""
    source = re.sub(r"^//# sourceMappingURL=.*$", "", source, flags=re.MULTILINE)
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def glyphs(token: str) -> str:
    """A token with nothing invisible left in it; two different tokens never look the same.

    Line feed is ``↵``, tab ``⇥``, a blank at an edge or beside another one ``·``, the empty token ``∅``; control
    characters are their pictures (``␀``), other invisible ones ``⟨U+202E⟩``; a combining mark that begins a token
    sits on ``◌``. A character that is itself one of these signs gets a backslash. Letters of all scripts and joined
    emoji stay whole.
    """
    if not token:
        return _EMPTY
    lone = _CIRCLE if unicodedata.category(token[0]).startswith("M") else ""
    return lone + "".join(_glyph(token, i) for i in range(len(token)))


def _glyph(token: str, i: int) -> str:
    char = token[i]
    if char in _RESERVED:
        return "\\" + char
    if char in _WHITESPACE:
        return _WHITESPACE[char]
    if char == " ":
        inner = 0 < i < len(token) - 1 and token[i - 1] != " " and token[i + 1] != " "
        return " " if inner else _BLANK
    category = unicodedata.category(char)
    if category == "Cc" and ord(char) < 0x20:
        return chr(0x2400 + ord(char))
    if char in _JOINERS and 0 < i < len(token) - 1 and token[i - 1] not in _JOINERS + " ":
        return char
    if 0xE0020 <= ord(char) <= 0xE007F and i > 0:  # tags inside flags
        return char
    if category in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Cn"):
        return f"⟨U+{ord(char):04X}⟩"
    return char


def short(label: str, limit: int) -> str:
    """A label of at most ``limit`` characters; a longer one ends in an ellipsis."""
    return label if len(label) <= limit else label[: limit - 1].rstrip(_JOINERS) + "…"
