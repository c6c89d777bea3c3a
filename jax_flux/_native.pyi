# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
# Generated from the native library by `make stub`.
"""
Native library of jax_flux: FFI handlers, their kernels and the failure record.
"""



def registrations() -> dict:
    """FFI target name -> stage name -> handler capsule."""

def versions() -> dict:
    """
    Versions of the library, the FFI API and CUDA it was built with, the protocol, and the NCCL loaded now (0 for none).
    """

def instances() -> list:
    """One dict per compiled kernel."""

def launches() -> dict:
    """
    Kernel launches of this process, direct and under capture; replays are not seen.
    """

def last_failure() -> str | None:
    """Sentence of the last missed deadline of this process, or None."""
