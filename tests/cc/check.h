// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Assertions and a stopwatch for tests/cc: no test framework is within reach of an offline build.
#ifndef JAX_FLUX_TESTS_CC_CHECK_H_
#define JAX_FLUX_TESTS_CC_CHECK_H_

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace jax_flux::test {

[[noreturn]] inline void Die() {
  std::cout.flush();
  std::cerr.flush();
  std::_Exit(1);
}

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace jax_flux::test

// What follows the condition is streamed into the message: CHECK(i < n, "i " << i << " of " << n).
#define CHECK(condition, message)                                                          \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " #condition " is false: " << message \
                << "\n";                                                                   \
      ::jax_flux::test::Die();                                                             \
    }                                                                                      \
  } while (false)

#define CHECK_EQ(left, right, message) \
  CHECK((left) == (right), (left) << " against " << (right) << ": " << message)

#endif  // JAX_FLUX_TESTS_CC_CHECK_H_
