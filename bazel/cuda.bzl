# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""CUDA rules: nvcc_library() compiles .cu files, kernel_instances() writes them from a table."""

load("@cuda//:config.bzl", "HOST_COMPILER", "NVCC", "RELEASE")
load("@rules_cc//cc:defs.bzl", "cc_library")

# -DNDEBUG: without it ptxas serialises wgmma. sm_90a: wgmma and TMA exist there only.
_COPTS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-gencode=arch=compute_90a,code=sm_90a",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Werror",
    "-Xptxas=-v",
]

_SOURCES = [".cu"]
_HEADERS = [".h", ".cuh", ".hpp", ".inc"]

def _include_flags(context):
    """Includes as Bazel knows them; everything from outside our tree is a system include."""
    quoted = ["-I" + path for path in context.quote_includes.to_list() + context.includes.to_list()]
    system = []
    for path in context.system_includes.to_list():
        system += ["-isystem", path]
    return quoted + system

def _nvcc_archive_impl(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [context.headers for context in contexts])
    flags = ["-I.", "-I" + ctx.bin_dir.path, "-I" + ctx.genfiles_dir.path]
    for context in contexts:
        flags += _include_flags(context)
        flags += ["-D" + define for define in context.defines.to_list()]

    objects, reports = [], []
    for source in ctx.files.srcs:
        stem = ctx.label.name + "/" + source.basename[:-len(".cu")]
        object = ctx.actions.declare_file(stem + ".o")
        report = ctx.actions.declare_file(stem + ".ptxas.txt")
        arguments = ctx.actions.args()
        arguments.add(report)
        arguments.add("1" if ctx.attr.no_spills else "0")
        arguments.add(NVCC)
        arguments.add("-ccbin", HOST_COMPILER)
        arguments.add_all(_COPTS)
        arguments.add_all(flags, uniquify = False)
        arguments.add_all(ctx.attr.copts)
        arguments.add("-c", source)
        arguments.add("-o", object)
        ctx.actions.run(
            executable = ctx.executable._nvcc,
            arguments = [arguments],
            inputs = depset([source], transitive = [headers]),
            outputs = [object, report],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc %s" % (source.short_path, RELEASE),
            # The compiler lies outside the tree: its release stands for it in the action's key.
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "JAX_FLUX_NVCC_RELEASE": RELEASE},
        )
        objects.append(object)
        reports.append(report)

    archive = ctx.actions.declare_file("lib%s.a" % ctx.label.name)
    ctx.actions.run_shell(
        command = 'rm -f "$1" && ar rcsD "$@"',
        arguments = [archive.path] + [object.path for object in objects],
        inputs = objects,
        outputs = [archive],
        mnemonic = "CudaArchive",
        progress_message = "Archiving " + archive.short_path,
    )
    return [
        DefaultInfo(files = depset([archive])),
        OutputGroupInfo(ptxas = depset(reports)),
    ]

_nvcc_archive = rule(
    implementation = _nvcc_archive_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = _SOURCES),
        "hdrs": attr.label_list(allow_files = _HEADERS),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "no_spills": attr.bool(),
        "_nvcc": attr.label(
            default = "//bazel:nvcc.sh",
            allow_single_file = True,
            executable = True,
            cfg = "host",
        ),
    },
)

def nvcc_library(
        name,
        srcs,
        hdrs = [],
        deps = [],
        copts = [],
        no_spills = False,
        visibility = None,
        testonly = False,
        tags = []):
    """Compiles CUDA sources for sm_90a, one action each, into a library for cc_* rules.

    Args:
      name: what cc_library, cc_binary and nvcc_library targets name in deps.
      srcs: .cu files.
      hdrs: headers that these sources and the dependents include.
      deps: cc_library or nvcc_library targets; theirs from outside our tree are system includes.
      copts: further nvcc options.
      no_spills: fail when a kernel spills registers or keeps a stack frame.
      visibility: as everywhere.
      testonly: as everywhere.
      tags: as everywhere.

    `bazel build --output_groups=ptxas //...:NAME_cuda` gives ptxas's report per source.
    """
    all_deps = deps + ["@cuda//:cudart_static"]
    _nvcc_archive(
        name = name + "_cuda",
        srcs = srcs,
        hdrs = hdrs,
        deps = all_deps,
        copts = copts,
        no_spills = no_spills,
        testonly = testonly,
        tags = tags,
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [":%s_cuda" % name],
        hdrs = hdrs,
        deps = all_deps,
        linkstatic = 1,
        testonly = testonly,
        tags = tags,
        visibility = visibility,
    )

def _fill(template, row):
    """Replaces %{key} by the row's value for every key."""
    text = template
    for key, value in row.items():
        text = text.replace("%{" + key + "}", str(value))
    if "%{" in text:
        rest = text[text.index("%{"):]
        fail("kernel_instances: row %r has no value for %s in the template %r." %
             (row["name"], rest[:rest.index("}") + 1], template))
    return text

def _written_impl(ctx):
    ctx.actions.write(ctx.outputs.out, ctx.attr.content)

_written = rule(
    implementation = _written_impl,
    attrs = {"content": attr.string(), "out": attr.output(mandatory = True)},
)

def kernel_instances(
        name,
        table,
        unit,
        entry,
        registry,
        deps = [],
        registry_deps = [],
        copts = [],
        no_spills = True,
        visibility = None,
        tags = []):
    """Writes one .cu per row of a table and one registry that lists all rows, and compiles them.

    Args:
      name: the cc_library to depend on; it holds all instances and the registry.
      table: list of dicts. Every row needs "name" (a C++ identifier, unique: it is the file's name
        too) and "why" (the reason it earns its compile time); other keys are the templates' own.
        A row may set "copts" (list) and "no_spills" (bool) for itself.
      unit: text of a row's .cu; every %{key} becomes the row's value.
      entry: text per row that is joined into the registry in place of %{entries}; a tuple
        (declaration, entry) fills %{declarations} as well.
      registry: text of the registry's .cc, with %{entries} and maybe %{declarations}.
      deps: what the units include.
      registry_deps: what the registry includes.
      copts: nvcc options of all units.
      no_spills: as in nvcc_library.
      visibility: of the library.
      tags: as everywhere.
    """
    declaration, entry = entry if type(entry) == type(()) else ("", entry)
    seen = {}
    units = []
    for row in table:
        for key in ["name", "why"]:
            if not row.get(key):
                fail("kernel_instances: row %r has no %r." % (row, key))
        if row["name"] in seen:
            fail("kernel_instances: two rows are named %r." % row["name"])
        seen[row["name"]] = True
        source = "%s/%s.cu" % (name, row["name"])
        _written(
            name = "%s_%s_source" % (name, row["name"]),
            content = "// Generated by kernel_instances(name = \"%s\"). Why: %s\n%s" %
                      (name, row["why"], _fill(unit, row)),
            out = source,
            visibility = ["//visibility:private"],
        )
        nvcc_library(
            name = "%s_%s" % (name, row["name"]),
            srcs = [source],
            deps = deps,
            copts = copts + row.get("copts", []),
            no_spills = row.get("no_spills", no_spills),
            tags = tags,
            visibility = ["//visibility:private"],
        )
        units.append(":%s_%s" % (name, row["name"]))
    _written(
        name = name + "_registry_source",
        content = "// Generated by kernel_instances(name = \"%s\").\n%s" % (
            name,
            registry.replace("%{declarations}", "".join([_fill(declaration, row) for row in table]))
                .replace("%{entries}", "".join([_fill(entry, row) for row in table])),
        ),
        out = name + "/registry.cc",
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [name + "/registry.cc"],
        deps = registry_deps + units,
        copts = ["-Wall", "-Wextra", "-Werror"],
        tags = tags,
        visibility = visibility,
    )
