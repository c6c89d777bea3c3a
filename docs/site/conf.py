# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the Markdown pages as they lie in the repository, and the reference from the docstrings.

The source folder is the repository's root, so that the pages' links mean here what they mean in a
checkout. ``make docs`` builds; every warning is an error and nothing is downloaded.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(os.path.dirname(HERE))]
os.environ["JAX_PLATFORMS"] = "cpu"  # importing the package must not wake a GPU

from jax_flux import __version__  # noqa: E402

project = "jax_flux"
copyright = "2026 The jax_flux Authors"
author = "The jax_flux Authors"
version = release = __version__

root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "benchmarks/README.md", "docs/**"]
# Named folders are not entered at all.
exclude_patterns = [".*", "bazel-*", "build", "dist", "out", "cuda", "tests", "jax_flux"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "pages",
    "command_line",
]
nitpicky = True
smartquotes_action = "D"  # dashes; quotes and dots stay what Python wants
default_role = "any"  # `name` in a docstring is a link, and a warning where it leads nowhere
myst_heading_anchors = 4

autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "none"  # the docstrings say shapes and dtypes, which the hints do not
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False  # several names before a colon stay one entry
napoleon_custom_sections = ["Notes", ("Attributes", "params_style")]

html_theme = "furo"
pygments_style = "default"  # colours both sides of a diff
html_title = f"jax_flux {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_additional_pages = {"index": "index.html"}
templates_path = ["templates"]
