# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""The directive ``.. tools::``: a section per tool of ``python -m jax_flux``, with its --help."""

import contextlib
import importlib
import io
import os
from unittest import mock

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from jax_flux.__main__ import TOOLS


def help_text(name):
    """What ``python -m jax_flux NAME --help`` prints, 96 columns wide, without colours."""
    tool = importlib.import_module(f"jax_flux.tools.{name}")
    printed = io.StringIO()
    environ = {"COLUMNS": "98", "NO_COLOR": "1"}
    with (
        mock.patch.dict(os.environ, environ),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        tool.main(["--help"])
    return printed.getvalue().replace(os.path.expanduser("~"), "~")


class Tools(SphinxDirective):
    """Writes the sections."""

    def run(self):
        sections = []
        for name, does in TOOLS.items():
            section = nodes.section(ids=[f"tool-{name}"], names=[name])
            section += nodes.title("", name)
            section += nodes.paragraph("", does[0].upper() + does[1:] + ".")
            text = help_text(name)
            section += nodes.literal_block(text, text, language="none")
            sections.append(section)
            self.env.note_dependency(importlib.import_module(f"jax_flux.tools.{name}").__file__)
        return sections


def setup(app):
    app.add_directive("tools", Tools)
    return {"version": "1", "parallel_read_safe": True}
