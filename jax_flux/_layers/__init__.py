# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `jax_flux.nnx` and `jax_flux.linen` share. Knows no Flax.

Route of a call: the layer asks place.py where it stands (local shards or global arrays), then
mesh.py runs one of bodies.py there. weights.py has the parameters' shapes and shardings.
"""
