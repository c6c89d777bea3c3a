# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the site adds to the pages: navigation, links into the reference, and that it is complete.

The pages stay plain Markdown. The order of the site is `NAVIGATION`, appended to the root page as
hidden tables of contents; a literal such as ``jax_flux.explain`` becomes a link to its entry.
"""

import importlib
import inspect
import os
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

NAVIGATION = {
    "Use it": ["docs/usage", "docs/pjit", "docs/flax", "docs/multi_process", "docs/tuning"],
    "Move to it": ["docs/from_xla_flags", "docs/from_transformer_engine", "docs/from_pallas"],
    "Reference": ["docs/api/index"],
    "How it works": [
        "docs/README",
        "docs/architecture",
        "docs/protocol",
        "docs/kernels",
        "docs/tracing",
        "docs/development",
        "benchmarks/README",
        "CHANGELOG",
    ],
}
# What these export (``__all__``, else the names of their own) must be in the reference.
PUBLIC = (
    "jax_flux",
    "jax_flux.errors",
    "jax_flux.export",
    "jax_flux.linen",
    "jax_flux.nnx",
    "jax_flux.reference",
)
NAMED = re.compile(r"(jax_flux(?:\.\w+)+)(?:\(.*\))?", re.DOTALL)
FILE = re.compile(r"[\w./]+\.(md|rst)")
logger = logging.getLogger(__name__)


def public_names():
    """Every public name with the module that it is imported from, and the modules."""
    names = set(PUBLIC)
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module_name]
        listed = getattr(module, "__all__", own)
        names |= {f"{module_name}.{name}" for name in listed if not name.startswith("_")}
    return names


def append_navigation(app, docname, source):
    """Appends the hidden tables of contents to the root page; unlisted pages come last."""
    if docname != app.config.root_doc:
        return
    listed = {page for pages in NAVIGATION.values() for page in pages}
    reached = {docname, *(page for page in app.env.found_docs if page.startswith("docs/api/"))}
    others = sorted(app.env.found_docs - listed - reached)
    for caption, pages in {**NAVIGATION, "More": others}.items():
        if pages:
            lines = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]
            source[0] += "\n\n" + "\n".join(lines) + "\n"


class Links(SphinxTransform):
    """Makes literals that name something public into links to the reference.

    A link to a folder of the checkout has nowhere to lead on the site: its text remains. A link
    whose text is a page's file name gets the page's title.
    """

    default_priority = 500

    def apply(self, **kwargs):
        """Called once per page."""
        names = public_names()
        here = os.path.dirname(self.env.doc2path(self.env.docname))
        for link in list(self.document.findall(addnodes.pending_xref)):
            if os.path.isdir(os.path.join(here, link["reftarget"])):
                link.replace_self(link.children)
            elif FILE.fullmatch(link.astext()):
                link["refexplicit"] = False
        for literal in list(self.document.findall(nodes.literal)):
            match = NAMED.fullmatch(literal.astext())
            inside = isinstance(literal.parent, (nodes.reference, addnodes.pending_xref))
            if match and match.group(1) in names and not inside:
                where = dict(refdomain="py", reftype="obj", reftarget=match.group(1))
                link = addnodes.pending_xref("", **where, refexplicit=True, refwarn=True)
                literal.replace_self(link)
                link += literal


class Shown:
    """A default value, printed as the source would name it."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        if callable(self.value):
            return getattr(self.value, "__qualname__", repr(self.value)).split(".<locals>")[0]
        return repr(self.value)


def constructor(app, what, name, obj, options, signature, returns):
    """The arguments of a layer's constructor, which Flax's metaclasses hide or decorate."""
    if what != "class" or not name.startswith(("jax_flux.nnx.", "jax_flux.linen.")):
        return None
    kept = []
    for parameter in list(inspect.signature(obj.__init__).parameters.values())[1:]:
        if parameter.name == "parent":  # linen's own bookkeeping
            continue
        default = parameter.default
        shown = default if default is inspect.Parameter.empty else Shown(default)
        kept.append(parameter.replace(annotation=inspect.Parameter.empty, default=shown))
    return str(inspect.Signature(kept)), None


def demand_completeness(app, env):
    """Warns, which fails the build, of public names without an entry."""
    entries = set(env.domains.python_domain.objects)
    for name in sorted(public_names() - entries):
        logger.warning("%s is public and has no entry in docs/api", name)


def setup(app):
    """Sphinx calls this."""
    app.connect("source-read", append_navigation)
    app.connect("autodoc-process-signature", constructor)
    app.connect("env-check-consistency", demand_completeness)
    app.add_transform(Links)
    return {"version": "1", "parallel_read_safe": True}
