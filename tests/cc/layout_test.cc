// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
//
// cuda/protocol/layout.h over many generation shapes: regions disjoint, aligned, inside the total;
// every word has one place; Fits is an order.
#include "cuda/protocol/layout.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cc/check.h"

namespace jax_flux::test {
namespace {

using namespace protocol;

struct Region {
  std::string name;
  std::uint64_t begin;
  std::uint64_t end;
};

std::string Describe(const GenerationShape& shape) {
  return "W " + std::to_string(shape.world) + ", flags " + std::to_string(shape.ag_flags) + "/" +
         std::to_string(shape.rs_flags) + "/" + std::to_string(shape.copy_flags) + ", halves " +
         std::to_string(shape.ag_half_bytes) + "/" + std::to_string(shape.rs_half_bytes) +
         ", copies " + std::to_string(shape.copy_bytes);
}

// Every word or range that anybody addresses, as one list.
std::vector<Region> Regions(const GenerationLayout& layout) {
  const GenerationShape& shape = layout.shape;
  std::vector<Region> regions;
  for (std::int32_t word = 0; word < static_cast<std::int32_t>(ControlWord::kCount); ++word) {
    const std::uint64_t at = layout.ControlOffset(static_cast<ControlWord>(word));
    regions.push_back({"control " + std::to_string(word), at, at + kLineBytes});
  }
  for (std::int32_t source = 0; source < shape.world; ++source) {
    const std::string of = " of " + std::to_string(source);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      const std::uint64_t at = layout.EntryOffset(source, epoch);
      regions.push_back({"entry " + std::to_string(epoch) + of, at, at + kLineBytes});
    }
    for (std::int32_t index = 0; index < shape.ag_flags; ++index) {
      const std::uint64_t at = layout.AgFlagOffset(source, index);
      regions.push_back({"AG flag " + std::to_string(index) + of, at, at + kFlagBytes});
    }
    for (std::int32_t index = 0; index < shape.rs_flags; ++index) {
      const std::uint64_t at = layout.RsFlagOffset(source, index);
      regions.push_back({"RS flag " + std::to_string(index) + of, at, at + kFlagBytes});
    }
    for (std::int32_t index = 0; index < shape.copy_flags; ++index) {
      const std::uint64_t at = layout.CopyFlagOffset(source, index);
      regions.push_back({"copy flag " + std::to_string(index) + of, at, at + kFlagBytes});
    }
  }
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    const std::uint64_t ag = layout.AgHalfOffset(epoch);
    const std::uint64_t rs = layout.RsHalfOffset(epoch);
    regions.push_back({"AG half " + std::to_string(epoch), ag, ag + shape.ag_half_bytes});
    regions.push_back({"RS half " + std::to_string(epoch), rs, rs + shape.rs_half_bytes});
  }
  regions.push_back(
      {"copies", layout.CopyDataOffset(), layout.CopyDataOffset() + shape.copy_bytes});
  regions.erase(std::remove_if(regions.begin(), regions.end(),
                               [](const Region& region) { return region.begin == region.end; }),
                regions.end());
  return regions;
}

void CheckDisjoint(const GenerationLayout& layout) {
  std::vector<Region> regions = Regions(layout);
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < regions.size(); ++i) {
    CHECK(regions[i - 1].end <= regions[i].begin,
          regions[i - 1].name << " overlaps " << regions[i].name << "; " << Describe(layout.shape));
  }
  CHECK(regions.back().end <= layout.TotalBytes(), Describe(layout.shape));
}

void CheckAligned(const GenerationLayout& layout) {
  const std::string what = Describe(layout.shape);
  CHECK_EQ(layout.TotalBytes() % kAreaBytes, 0u, what);
  CHECK_EQ(layout.CopyDataOffset() % kAreaBytes, 0u, what);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    CHECK_EQ(layout.AgHalfOffset(epoch) % kAreaBytes, 0u, what);
    CHECK_EQ(layout.RsHalfOffset(epoch) % kAreaBytes, 0u, what);
  }
  for (std::int32_t source = 0; source < layout.shape.world; ++source) {
    // A row begins a line, so ranks never write into one line of flags.
    CHECK_EQ(layout.AgFlagOffset(source, 0) % kLineBytes, 0u, what);
    CHECK_EQ(layout.RsFlagOffset(source, 0) % kLineBytes, 0u, what);
    CHECK_EQ(layout.CopyFlagOffset(source, 0) % kLineBytes, 0u, what);
  }
}

// Only the parity of the epoch moves an address, and a flag never moves.
void CheckEpochs(const GenerationLayout& layout) {
  for (std::uint64_t epoch : {2u, 3u, 1000000007u}) {
    const std::string what = Describe(layout.shape);
    CHECK_EQ(layout.AgHalfOffset(epoch), layout.AgHalfOffset(epoch % 2), what);
    CHECK_EQ(layout.RsHalfOffset(epoch), layout.RsHalfOffset(epoch % 2), what);
    CHECK_EQ(layout.EntryOffset(0, epoch), layout.EntryOffset(0, epoch % 2), what);
  }
}

void CheckFits(const std::vector<GenerationShape>& shapes) {
  for (const GenerationShape& shape : shapes) {
    CHECK(Fits(shape, shape), Describe(shape));
    GenerationShape larger = shape;
    larger.world += 1;
    CHECK(!Fits(shape, larger) && !Fits(larger, shape), Describe(shape));
    for (int field = 0; field < 6; ++field) {
      larger = shape;
      if (field == 0) larger.ag_flags += 1;
      if (field == 1) larger.rs_flags += 1;
      if (field == 2) larger.ag_half_bytes += 1;
      if (field == 3) larger.rs_half_bytes += 1;
      if (field == 4) larger.copy_flags += 1;
      if (field == 5) larger.copy_bytes += 1;
      CHECK(Fits(shape, larger), Describe(shape));
      CHECK(!Fits(larger, shape), Describe(shape));
    }
  }
}

std::vector<GenerationShape> Shapes() {
  std::vector<GenerationShape> shapes;
  for (std::int32_t world = 1; world <= kMaxWorld; ++world) {
    for (std::int32_t ag_flags : {0, 1, 15, 16, 17, 192}) {
      for (std::int32_t rs_flags : {0, 1, 16, 33}) {
        for (std::uint64_t ag_half : {0ull, 16ull, 1000ull, 1024ull, 1025ull, 6ull << 30}) {
          for (std::uint64_t rs_half : {0ull, 48ull, 4096ull, 5ull << 30}) {
            // A third of the shapes each without, with little and with much to copy.
            const auto turn = shapes.size() % 3;
            shapes.push_back({world, ag_flags, rs_flags, ag_half, rs_half,
                              turn == 0 ? 0 : static_cast<std::int32_t>(7 * turn + 2),
                              turn == 2 ? 3ull << 30 : turn * 1040});
          }
        }
      }
    }
  }
  return shapes;
}

}  // namespace
}  // namespace jax_flux::test

int main() {
  using namespace jax_flux::test;
  const Stopwatch stopwatch;
  const std::vector<GenerationShape> shapes = Shapes();
  for (const GenerationShape& shape : shapes) {
    const GenerationLayout layout{shape};
    CheckDisjoint(layout);
    CheckAligned(layout);
    CheckEpochs(layout);
  }
  CheckFits(shapes);
  std::printf("layout_test: %zu generation shapes, %.1f s\n", shapes.size(), stopwatch.Seconds());
  return 0;
}
