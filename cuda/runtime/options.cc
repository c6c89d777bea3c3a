// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/options.h"

#include <cstdio>
#include <cstdlib>

namespace jax_flux::runtime {
namespace {

double Seconds(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  // 1e9 s keeps the nanoseconds inside 64 bits.
  if (*end == '\0' && value > 0 && value <= 1e9) return value;
  std::fprintf(stderr,
               "jax_flux: %s=\"%s\" is not a number of seconds between 0 and 1e9; using %g.\n",
               name, text, otherwise);
  return otherwise;
}

}  // namespace

const Options& Options::Get() {
  static const Options* options = [] {
    auto* read = new Options;
    read->warn_s = Seconds("JAX_FLUX_WARN_S", read->warn_s);
    read->timeout_s = Seconds("JAX_FLUX_TIMEOUT_S", read->timeout_s);
    read->queue_s = Seconds("JAX_FLUX_QUEUE_S", read->queue_s);
    read->grace_s = Seconds("JAX_FLUX_GRACE_S", read->grace_s);
    return read;
  }();
  return *options;
}

}  // namespace jax_flux::runtime
