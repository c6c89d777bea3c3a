// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/device.h"

#include <map>
#include <memory>
#include <mutex>

#include "cuda/runtime/watchdog.h"

namespace jax_flux::runtime {
namespace {

struct Devices {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Device>> made;
};

Devices& TheDevices() {
  static auto* devices = new Devices;
  return *devices;
}

}  // namespace

ScopedDevice::ScopedDevice(int device) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
  changed_ = before_ != device;
  if (changed_) cudaSetDevice(device);
}

ScopedDevice::~ScopedDevice() {
  if (changed_) cudaSetDevice(before_);
}

Expected<Device*> FindDevice(int device) {
  Devices& devices = TheDevices();
  std::lock_guard<std::mutex> lock(devices.mutex);
  auto found = devices.made.find(device);
  if (found != devices.made.end()) return found->second.get();
  ScopedDevice scoped(device);
  auto record = DeviceRecord(device);
  if (!record.ok()) return record.status();
  auto made = std::make_unique<Device>();
  made->record = record.value();
  JAX_FLUX_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking));
  JAX_FLUX_RETURN_IF_ERROR(made->exchange.Init());
  return devices.made.emplace(device, std::move(made)).first->second.get();
}

}  // namespace jax_flux::runtime
