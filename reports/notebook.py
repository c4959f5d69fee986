"""Figures inside a notebook: what a widget needs that touches nothing outside its element, and a page in a frame."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reports import live, page
from workbench.findings import Attention

ROOT = "workbench-view"

_RENDER = f"""
export default {{
  render({{ model, el }}) {{
    const place = document.createElement("div");
    el.classList.add("{ROOT}");
    el.append(place);
    const view = AblationView.mount(place, model.get("payload"), {{ fragment: false }});
    return () => view.destroy();
  }},
}};
"""

# The figures alone: no headline, no contents, and the identity stays in the source.
_FIGURES_ONLY = "main{padding:1px 0;max-width:none}.lead,.contents,main h2,section:has(>.rerun){display:none}"


def module() -> str:
    """The ablation view as an ECMAScript module that anywidget renders; ``payload`` is :func:`live.page_data`."""
    return live.library() + _RENDER


def style() -> str:
    """The rules of the view, all inside its own element: the notebook's own elements keep theirs."""
    rules = page.page_style() + live.style()
    nested = re.sub(r"(?<![\w-])(?::root|body)(?=[{,])", "&", rules)
    around = "padding:1.25rem;border:1px solid var(--edge);border-radius:var(--r)"
    return f".{ROOT}{{{nested}&{{{around}}}}}"


def attention_frame(findings: Sequence[Attention], *, identity: Mapping[str, Any], heading: str) -> str:
    """Attention figures in a frame of their own that needs no network and can reach nothing of the notebook."""
    source = page.render_page(findings, identity=identity, command="subject.show_attention(...)", heading=heading)
    source = source.replace("</style>", f"{_FIGURES_ONLY}</style>", 1)
    return (
        f'<iframe title="Attention" sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(source)}" '
        'style="width:100%;height:46rem;border:0;resize:vertical"></iframe>'
    )
