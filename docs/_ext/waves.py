"""Directive ``wave``: a WaveDrom file (JSON) as an inline picture, drawn without JavaScript or a network.

The text stays readable where the renderer (the Python package ``wavedrom``) is missing: the page then shows the source.
"""

import html
import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

try:
    import wavedrom
except ImportError:
    wavedrom = None


class Wave(SphinxDirective):
    """Show ``waves/NAME.json``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the picture for HTML, or the source."""
        path = Path(self.env.srcdir) / "waves" / f"{self.arguments[0]}.json"
        self.env.note_dependency(str(path))
        text = path.read_text(encoding="utf-8")
        if wavedrom is None or self.env.app.builder.format != "html":
            return [nodes.literal_block(text, text, language="json")]
        # The title goes below the picture, where it may be wider than the wave.
        wave = json.loads(text)
        title = html.escape(wave.pop("head", {}).get("text", ""))
        svg = wavedrom.render(json.dumps(wave)).tostring()
        # Identifiers inside the picture must differ from those of other pictures on the page.
        name = self.arguments[0].replace("-", "_")
        for ident in ("svgcontent", "waves", "lanes", "wavelane", "groups", "gmarks"):
            svg = svg.replace(f'id="{ident}_', f'id="{name}_{ident}_')
        picture = (
            '<figure style="margin:1em 0"><div style="background:#fff;overflow-x:auto;padding:.5em">'
            f"{svg}</div><figcaption>{title}</figcaption></figure>"
        )
        return [nodes.raw("", picture, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("wave", Wave)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
