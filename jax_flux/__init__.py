# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""jax_flux: tensor-parallel matmuls whose communication disappears inside the GEMM kernel.

`ag_matmul`, `matmul_rs` and `matmul_ar` stand inside ``jax.shard_map``; the ``*_sharded`` twins
take global arrays. Importing this package touches no GPU and registers nothing.
"""

from jax_flux import errors, reference
from jax_flux._config import Config
from jax_flux._explain import explain
from jax_flux._ffi import last_failure, register
from jax_flux._stats import stats, stats_reset
from jax_flux._version import __version__
from jax_flux.export import export_safety_checks
from jax_flux.ops import ag_matmul, matmul_ar, matmul_rs
from jax_flux.sharded import ag_matmul_sharded, matmul_ar_sharded, matmul_rs_sharded

__all__ = [
    "Config",
    "__version__",
    "ag_matmul",
    "ag_matmul_sharded",
    "errors",
    "explain",
    "export_safety_checks",
    "last_failure",
    "matmul_ar",
    "matmul_ar_sharded",
    "matmul_rs",
    "matmul_rs_sharded",
    "reference",
    "register",
    "stats",
    "stats_reset",
]
