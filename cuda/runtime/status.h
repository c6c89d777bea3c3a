// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Errors as values: a code for XLA and one sentence for the user. No exception crosses the runtime.
#ifndef JAX_FLUX_CUDA_RUNTIME_STATUS_H_
#define JAX_FLUX_CUDA_RUNTIME_STATUS_H_

#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>

namespace jax_flux::runtime {

enum class Code {
  kOk,
  kInvalidArgument,     // the call itself is wrong
  kFailedPrecondition,  // the machine, the libraries or the other ranks do not allow it
  kDeadlineExceeded,    // a peer did not come
  kResourceExhausted,   // no device memory
  kInternal,            // CUDA or NCCL failed
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : data_(std::move(value)) {}         // NOLINT
  Expected(Status status) : data_(std::move(status)) {}  // NOLINT

  bool ok() const { return data_.index() == 0; }
  T& value() { return std::get<0>(data_); }
  const T& value() const { return std::get<0>(data_); }
  Status status() const { return ok() ? Status() : std::get<1>(data_); }

 private:
  std::variant<T, Status> data_;
};

// printf into a std::string.
[[gnu::format(printf, 1, 2)]] inline std::string Format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string text(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace jax_flux::runtime

// Evaluates a Status and returns it from the calling function unless it is ok.
#define JAX_FLUX_RETURN_IF_ERROR(expression)                                 \
  do {                                                                       \
    if (::jax_flux::runtime::Status status_ = (expression); !status_.ok()) { \
      return status_;                                                        \
    }                                                                        \
  } while (false)

// Evaluates a CUDA runtime call; returns a Status that names the call unless it succeeded.
#define JAX_FLUX_RETURN_IF_CUDA_ERROR(expression)                                             \
  do {                                                                                        \
    if (cudaError_t error_ = (expression); error_ != cudaSuccess) {                           \
      return ::jax_flux::runtime::Status(                                                     \
          error_ == cudaErrorMemoryAllocation ? ::jax_flux::runtime::Code::kResourceExhausted \
                                              : ::jax_flux::runtime::Code::kInternal,         \
          ::jax_flux::runtime::Format("jax_flux: %s failed: %s", #expression,                 \
                                      cudaGetErrorString(error_)));                           \
    }                                                                                         \
  } while (false)

#endif  // JAX_FLUX_CUDA_RUNTIME_STATUS_H_
