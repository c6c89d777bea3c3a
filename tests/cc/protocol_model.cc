// Copyright 2026 The jax_flux Authors.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cc/protocol_model.h"

#include <algorithm>

#include "tests/cc/check.h"

namespace jax_flux::test {

using namespace protocol;

namespace {
constexpr int kMaxPieces = 2;
constexpr std::uint64_t kPieceBytes = kAreaBytes;
}  // namespace

Model::Model(const ModelConfig& config) : config_(config) {
  for (int rank = 0; rank < config_.world; ++rank) max_ctas_ = std::max(max_ctas_, Ctas(rank));
  mixed_programs_ = config_.programs.size() > 1;
  bool engine = false;
  for (const auto& program : config_.programs) {
    for (const ModelCall& call : program) engine |= LaunchOf(call, 1).engine;
  }
  threads_per_rank_ = max_ctas_ * (config_.pusher_thread ? 2 : 1) + (engine ? 1 : 0);
  const std::uint64_t half = static_cast<std::uint64_t>(config_.world) * kMaxPieces * kPieceBytes;
  for (GenerationLayout& layout : layouts_) {
    layout.shape = {config_.world, kMaxPieces, kMaxPieces, half, half, kMaxPieces, half};
  }
  AddCells();
  const int block = static_cast<int>(sizeof(RankWords)) + 2 * static_cast<int>(sizeof(Control)) +
                    threads_per_rank_ * static_cast<int>(sizeof(Thread)) + cell_count_;
  state_bytes_ = (config_.world * block + 7) / 8 * 8;
  CHECK(state_bytes_ <= kMaxStateBytes, state_bytes_ << " bytes in " << config_.name);
}

const std::vector<ModelCall>& Model::Program(int rank) const {
  return config_.programs[mixed_programs_ ? static_cast<std::size_t>(rank) : 0];
}
const ModelCall& Model::CallOf(int rank, int call) const {
  return Program(rank)[static_cast<std::size_t>(call)];
}
int Model::Ctas(int rank) const {
  return config_.ctas[config_.ctas.size() > 1 ? static_cast<std::size_t>(rank) : 0];
}

int Model::LaunchCount(const ModelCall& call) const {
  if (call.op == ModelOp::kCopyPair) return 3;
  return call.op == ModelOp::kBackward || call.op == ModelOp::kCopyEngine ? 2 : 1;
}

Model::Launch Model::LaunchOf(const ModelCall& call, int launch) const {
  Launch l;
  l.first = launch == 0;
  l.last = launch == LaunchCount(call) - 1;
  switch (call.op) {
    case ModelOp::kAg:
    case ModelOp::kBroadcast:
      l.pushes = l.ag_tiles = true;
      break;
    case ModelOp::kRs:
      l.rs_tiles = true;
      break;
    case ModelOp::kBackward:
      l.pushes = l.rs_tiles = l.first;
      l.ag_tiles = l.last;
      break;
    case ModelOp::kCopyEngine:
    case ModelOp::kCopyPair:
      l.gate = l.first;
      l.ag_tiles = l.engine = !l.first;
      break;
  }
  return l;
}

TileGrid Model::Tiles(const ModelCall& call, int rank) const {
  // A piece is a tile row of its segment, or a tile column of all segments.
  if (config_.pack > 0) return {config_.world, rank, 1, 1, call.pieces, 1, 1, 1, 1, config_.pack};
  return {config_.world, rank, 1, call.pieces, 1, 1, 1, 1};
}
ChunkGrid Model::Chunks(const ModelCall& call) const {
  return {1, call.pieces, 1, 1, 1, false, 1, config_.pack > 0};
}

int Model::PushCount(const Context& at) const {
  if (at.call->op == ModelOp::kBroadcast && at.rank != 0) return 0;
  return TotalPushes(Chunks(*at.call), config_.world);
}

// --- addresses -----------------------------------------------------------------------------------

std::uint64_t Model::FlagAddress(const ModelCall& call, const Piece& piece) const {
  const GenerationLayout& layout = layouts_[static_cast<std::size_t>(call.generation)];
  const bool rs = piece.area == Area::kRs && config_.fault != Fault::kSharedAreas;
  if (piece.area == Area::kEngine && config_.fault != Fault::kCopiesInAgArea) {
    return layout.CopyFlagOffset(piece.source, piece.index);
  }
  if (config_.fault == Fault::kFlagRowPerCall) {
    return (rs ? layout.RsFlagsOffset() : layout.AgFlagsOffset()) +
           static_cast<std::uint64_t>(piece.source * call.pieces + piece.index) * kFlagBytes;
  }
  return rs ? layout.RsFlagOffset(piece.source, piece.index)
            : layout.AgFlagOffset(piece.source, piece.index);
}

std::uint64_t Model::DataAddress(const ModelCall& call, const Piece& piece,
                                 std::uint64_t epoch) const {
  const GenerationLayout& layout = layouts_[static_cast<std::size_t>(call.generation)];
  const bool rs = piece.area == Area::kRs && config_.fault != Fault::kSharedAreas;
  const std::uint64_t slot =
      static_cast<std::uint64_t>(piece.source * call.pieces + piece.index) * kPieceBytes;
  if (piece.area == Area::kEngine) {
    const bool shared = config_.fault == Fault::kCopiesInAgArea;
    return (shared ? layout.AgHalfOffset(0) : layout.CopyDataOffset()) + slot;
  }
  if (config_.fault == Fault::kHalfPerCall) {
    const std::uint64_t half =
        static_cast<std::uint64_t>(config_.world * call.pieces) * kPieceBytes;
    return (rs ? layout.RsDataOffset() : layout.AgDataOffset()) + (epoch & 1) * half + slot;
  }
  return (rs ? layout.RsHalfOffset(epoch) : layout.AgHalfOffset(epoch)) + slot;
}

void Model::AddCell(int generation, std::uint64_t address, int writer) {
  const auto [cell, added] =
      cell_map_[static_cast<std::size_t>(generation)].emplace(address, cell_count_);
  if (added) {
    writers_.emplace_back(static_cast<std::size_t>(config_.world), -1);
    cell_count_ += 1;
  }
  // Nobody writes into its own row of flags, so the writer of a cell may differ by workspace.
  std::vector<int>& writers = writers_[static_cast<std::size_t>(cell->second)];
  for (int rank = 0; rank < config_.world; ++rank) {
    int& known = writers[static_cast<std::size_t>(rank)];
    // Packed gathers send to the rank itself as well.
    if ((rank != writer || config_.pack > 0) && known < 0) known = writer;
  }
}

// Every address that the programs use becomes one byte of each rank's state. Addresses that
// coincide become the same byte, so an overlap in layout.h is seen as one.
void Model::AddCells() {
  for (const auto& program : config_.programs) {
    for (const ModelCall& call : program) {
      const auto& layout = layouts_[static_cast<std::size_t>(call.generation)];
      for (int source = 0; source < config_.world; ++source) {
        for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
          AddCell(call.generation, layout.EntryOffset(source, epoch), source);
          AddCell(call.generation, layout.EntryOffset(source, epoch) + kFlagBytes, source);
          for (int index = 0; index < call.pieces; ++index) {
            std::vector<Area> areas;
            const Launch first = LaunchOf(call, 0);
            const Launch last = LaunchOf(call, LaunchCount(call) - 1);
            if (first.pushes) areas.push_back(Area::kAg);
            if (first.rs_tiles) areas.push_back(Area::kRs);
            if (last.engine) areas.push_back(Area::kEngine);
            for (Area area : areas) {
              AddCell(call.generation, FlagAddress(call, {area, source, index}), source);
              AddCell(call.generation, DataAddress(call, {area, source, index}, epoch), -1);
            }
          }
        }
      }
    }
  }
  for (std::size_t generation = 0; generation < 2; ++generation) {
    if (cell_map_[generation].empty()) continue;
    const std::uint64_t end = cell_map_[generation].rbegin()->first + kFlagBytes;
    cell_table_[generation].assign(end / kFlagBytes, -1);
    for (const auto& [address, cell] : cell_map_[generation]) {
      cell_table_[generation][address / kFlagBytes] = static_cast<std::int16_t>(cell);
    }
  }
}

int Model::Cell(int generation, std::uint64_t address) const {
  const auto& table = cell_table_[static_cast<std::size_t>(generation)];
  const std::uint64_t word = address / kFlagBytes;
  CHECK(word < table.size() && table[word] >= 0, "no cell at " << address);
  return table[word];
}

std::uint8_t* Model::At(State* state, int rank, int cell) const {
  const int fixed = static_cast<int>(sizeof(RankWords)) + 2 * static_cast<int>(sizeof(Control)) +
                    threads_per_rank_ * static_cast<int>(sizeof(Thread));
  return state->bytes.data() + rank * (fixed + cell_count_) + fixed + cell;
}

Model::Context Model::Enter(State* state, int thread) const {
  Context at;
  at.state = state;
  at.rank = RankOf(thread);
  const int local = thread % threads_per_rank_;
  const int roles = config_.pusher_thread ? 2 : 1;
  at.cta = local / roles;
  at.role = local < max_ctas_ * roles ? local % roles : 2;
  at.block = At(state, at.rank, 0) - threads_per_rank_ * static_cast<int>(sizeof(Thread)) -
             2 * static_cast<int>(sizeof(Control)) - static_cast<int>(sizeof(RankWords));
  // All three are structs of std::uint8_t only, so any address suits them.
  at.words = reinterpret_cast<RankWords*>(at.block);
  auto* controls = reinterpret_cast<Control*>(at.block + sizeof(RankWords));
  at.thread = reinterpret_cast<Thread*>(controls + 2) + local;
  at.call = nullptr;
  at.control = controls;
  if (at.words->call < CallCount(at.rank)) {
    at.call = &CallOf(at.rank, at.words->call);
    at.control = controls + at.call->generation;
    at.launch = LaunchOf(*at.call, at.words->launch);
  }
  return at;
}

}  // namespace jax_flux::test
