"""From a matplotlib figure to inline SVG that follows the page's theme and shares no id with another drawing."""

from __future__ import annotations

import base64
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reports import palette

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif"
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "workbench",
    "svg.image_inline": True,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.7,
    "path.simplify": False,
}


_REFERENCE = re.compile(r"(?:^|url\()#([^)\s]+)")


@dataclass(frozen=True)
class Drawing:
    """A drawing: the SVG element, what it shows in words, what is out of order in it, and what its signs mean."""

    svg: str
    summary: str
    notes: tuple[str, ...] = ()
    legend: str = ""


@contextmanager
def quiet_matplotlib() -> Iterator[None]:
    """matplotlib at its own defaults plus ours, whatever theme is set outside, which is back afterwards."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The browser draws the text in its own fonts, so glyphs that ours lack are no loss.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty transparent figure of a size in inches, outside pyplot."""
    figure = Figure(figsize=(width, height), dpi=72, facecolor="none")
    FigureCanvasSVG(figure)
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the figure's top left corner."""
    w, h = figure.get_size_inches()
    axes = figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))
    axes.set_facecolor("none")
    return axes


def to_svg(figure: Figure, prefix: str, images: Sequence[tuple[Axes, Callable[[str], str]]] = ()) -> str:
    """The figure as an SVG element without prolog, date or foreign ids.

    Args:
        figure: drawn in the palette's stand-ins.
        prefix: begins every id.
        images: axes to fill with a raster, and the raster's data address for a theme.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag.endswith(("metadata", "}style"))]:  # the style would rule the page
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        # matplotlib indents; between elements white space says nothing (within a text it stays).
        element.text = (element.text or "").strip() or None if element.tag != "text" else element.text
        element.tail = (element.tail or "").strip() or None
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            element.attrib[name.rpartition("}")[2]] = _attribute(name.rpartition("}")[2], value, prefix)
    # matplotlib names every group; what nothing refers to is length alone.
    known = {name for element in root.iter() for value in element.attrib.values() for name in _REFERENCE.findall(value)}
    for element in root.iter():
        if element.attrib.get("id") not in known:
            element.attrib.pop("id", None)
    width, height = (value * 72 for value in figure.get_size_inches())
    for offset, (axes, address) in enumerate(images):
        for later, theme in enumerate(("light", "dark")):
            root.insert(1 + 2 * offset + later, _image(axes, address(theme), theme, width, height))
    for name in ("version", "width", "height"):
        root.attrib.pop(name, None)
    root.attrib |= {
        "class": "plot",
        "width": f"{width / 0.75:.0f}",
        "height": f"{height / 0.75:.0f}",
        "font-family": FONT,
    }
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href" and value.startswith("#"):
        return f"#{prefix}-{value[1:]}"
    if name == "d":
        return re.sub(r" *([A-Za-z]) *", r"\1", value)
    if name == "style":
        value = re.sub(r"font-family: [^;]*;?", "", value)
        value = re.sub(r"(font: (?:[\w.%-]+ )*[\d.]+px) [^;]*", rf"\1 {FONT}", value)
    return palette.to_variables(value.replace("url(#", f"url(#{prefix}-"))


def _image(axes: Axes, address: str, theme: str, width: float, height: float) -> ElementTree.Element:
    box = axes.get_position()
    attributes = {
        "class": f"only-{theme}",
        "x": f"{box.x0 * width:.2f}",
        "y": f"{(1 - box.y1) * height:.2f}",
        "width": f"{box.width * width:.2f}",
        "height": f"{box.height * height:.2f}",
        "preserveAspectRatio": "none",
        "style": "image-rendering:pixelated",
        "href": address,
    }
    return ElementTree.Element("image", attributes)


def png(levels: np.ndarray, kind: str, theme: str) -> str:
    """A matrix of levels (rows from the top, -1 where there is no value) as a data address, one pixel a cell."""
    table = np.array([palette.rgb(c) for c in palette.ramp(kind, theme)] + [(128, 128, 128)], dtype=np.uint8)
    height, width = levels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), (levels % (palette.LEVELS + 1)).astype(np.uint8)], axis=1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", table.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    chunks = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    return "data:image/png;base64," + base64.b64encode(data).decode()
