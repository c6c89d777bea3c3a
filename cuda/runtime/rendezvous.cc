// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cuda/runtime/rendezvous.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

namespace jax_flux::runtime {
namespace {

struct Meeting {
  int arrived = 0;
  int left = 0;
};

struct Meetings {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<MeetingKey, Meeting> open;
};

Meetings& TheMeetings() {
  static auto* meetings = new Meetings;
  return *meetings;
}

}  // namespace

bool Meet(const MeetingKey& key, int count, double limit_s) {
  if (count <= 1) return true;
  Meetings& meetings = TheMeetings();
  std::unique_lock<std::mutex> lock(meetings.mutex);
  Meeting& meeting = meetings.open[key];
  ++meeting.arrived;
  meetings.changed.notify_all();
  const bool met = meetings.changed.wait_for(lock, std::chrono::duration<double>(limit_s),
                                             [&] { return meeting.arrived >= count; });
  // The last to leave forgets the key: a plan that failed may be started again.
  if (met && ++meeting.left == count) meetings.open.erase(key);
  return met;
}

}  // namespace jax_flux::runtime
