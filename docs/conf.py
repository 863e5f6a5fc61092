"""Configuration of the documentation build."""

import os
import sys
from pathlib import Path

# Tables are laid out by width; a narrow terminal must not change the pages.
os.environ.setdefault("COLUMNS", "100")
os.environ.setdefault("NO_COLOR", "1")
os.environ.setdefault("TERM", "dumb")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE / "waves")]

from pagetide import __version__  # noqa: E402

project = "Pagetide"
author = "the Pagetide developers"
copyright = "2026, the Pagetide developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
    "contracts",
    "generated",
    "waves",
]
exclude_patterns = ["_build", "_ext", "_templates", "fidelity_tables.md"]
templates_path = ["_templates"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = f"Pagetide {__version__}"
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
# A bare name in a docstring may fit several objects; it is then linked to the first.
suppress_warnings = ["ref.python"]

# Single backticks in docstrings are names: linked where they resolve, plain text where they do not.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r".*"),
    # Private base classes have no page.
    ("py:class", r"pagetide\.(.*\.)?_.*"),
    # Without the net there is no inventory of other packages; names of our own must resolve.
    ("py:(class|data|exc|func|meth|attr|mod)", r"(?!pagetide\.).*"),
]

autosummary_generate = True
autosummary_ignore_module_all = True
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = True
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Members", "params_style"), ("Fields", "params_style")]

# Only fenced blocks that ask for it are run, and the examples in docstrings.
doctest_test_doctest_blocks = "default"
doctest_global_setup = ""
trim_doctest_flags = True
