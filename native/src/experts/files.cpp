// Opening a store's files, and reading experts from them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "experts/store.h"
#include "experts/system.h"
#include "quants/interleave.h"

namespace weft {

namespace {

constexpr int64_t kPage = 4096;

std::string bytes_text(int64_t n) { return std::to_string(n) + " bytes"; }

// nullptr where the numbers of a stack agree; otherwise why not.
const char* wrong(const ExpertStack& s, size_t n_files, const std::vector<ExpertPool>& pools) {
  if (s.file < 0 || static_cast<size_t>(s.file) >= n_files) return "no such file";
  if (s.pool < 0 || static_cast<size_t>(s.pool) >= pools.size()) return "no such pool";
  if (s.layer < 0 || s.n_experts < 1 || s.rows < 1 || s.offset < 0) return "sizes out of range";
  if (static_cast<int>(s.type) < 0 || static_cast<int>(s.type) >= kDTypeCount)
    return "no such type";
  const DTypeInfo& info = dtype_info(s.type);
  if (s.row_elements < 1 || s.row_elements % info.block != 0) return "rows of partial blocks";
  if (s.row_elements / info.block * info.block_size * s.rows != s.expert_bytes) {
    return "an expert has not the bytes of its rows";
  }
  if (pools[static_cast<size_t>(s.pool)].slot_bytes < s.expert_bytes) return "slots are too small";
  if (s.layout == Layout::kRows) return nullptr;
  const InterleavedFormat* format = interleaved_format(s.type);
  if (s.layout != Layout::kInterleaved || format == nullptr ||
      s.row_elements % format->block != 0 || s.rows % kPanelRows != 0) {
    return "its type or sizes do not have that layout";
  }
  return nullptr;
}

}  // namespace

Status ExpertStore::create(const std::vector<std::string>& paths, std::vector<ExpertStack> stacks,
                           std::vector<ExpertPool> pools, char* arena, int64_t arena_bytes,
                           int n_readers, ExpertPolicy policy, bool chooses,
                           std::shared_ptr<ExpertStore>& out) {
  std::shared_ptr<ExpertStore> self(new ExpertStore());
  std::vector<int32_t> pool_slots;
  std::vector<int32_t> stack_pool;
  std::vector<int32_t> stack_experts;
  std::vector<int32_t> layer_experts;
  int64_t used = 0;
  for (const ExpertPool& pool : pools) {
    if (pool.slot_bytes < 1 || pool.n_slots < 1) return Status::invalid("a pool without slots");
    pool_slots.push_back(pool.n_slots);
    for (int32_t i = 0; i < pool.n_slots; ++i, used += pool.slot_bytes) {
      self->slot_data_.push_back(arena + used);
    }
  }
  if (used > arena_bytes) {
    return Status::invalid("the slots need " + bytes_text(used) + ", the arena has " +
                           std::to_string(arena_bytes));
  }
  for (size_t i = 0; i < stacks.size(); ++i) {
    const ExpertStack& s = stacks[i];
    if (const char* why = wrong(s, paths.size(), pools); why != nullptr) {
      return Status::invalid("experts " + s.name + ": " + why);
    }
    stack_pool.push_back(s.pool);
    stack_experts.push_back(s.n_experts);
    const auto layer = static_cast<size_t>(s.layer);
    if (layer > self->layers_.size()) return Status::invalid("layers of experts are not in order");
    if (layer == self->layers_.size()) {
      self->layers_.emplace_back();
      layer_experts.push_back(s.n_experts);
    }
    if (layer_experts[layer] != s.n_experts) {
      return Status::invalid("experts " + s.name + ": its layer has another number of experts");
    }
    self->layers_[layer].push_back(static_cast<int32_t>(i));
    const int64_t bytes = s.expert_bytes * s.n_experts;
    self->reserved_bytes_ += static_cast<size_t>((bytes + kPage - 1) / kPage * kPage);
  }
  for (const std::string& path : paths) {
    const int descriptor = open_for_reading(path);
    if (descriptor < 0) return Status::invalid(path + ": " + std::strerror(errno));
    self->files_.push_back({path, descriptor});
  }
  // Addresses that nothing has: a kernel that read one by mistake would fault, and no two tensors
  // seem to overlap.
  if (self->reserved_bytes_ > 0) {
    self->reserved_ = reserve_addresses(self->reserved_bytes_);
    if (self->reserved_ == nullptr) return Status::invalid("no address range for the experts");
  }
  char* next = self->reserved_;
  for (const ExpertStack& s : stacks) {
    self->addresses_.push_back(next);
    next += (s.expert_bytes * s.n_experts + kPage - 1) / kPage * kPage;
  }
  self->books_ = std::make_unique<Residency>(pool_slots, stack_pool, stack_experts, policy);
  self->predictor_ = std::make_unique<ExpertPredictor>(layer_experts);
  self->failures_.resize(self->slot_data_.size());
  self->stacks_ = std::move(stacks);
  self->n_readers_ = n_readers;
  self->chooses_ = chooses && n_readers > 0;
  self->steps_to_review_ = kStepsBetweenReviews;
  // The simulation is of experts of layers, whose tensors are together in slots.
  int64_t of_layers = 0;
  int64_t of_stacks = 0;
  for (int32_t n : layer_experts) of_layers += n;
  for (int32_t n : stack_experts) of_stacks += n;
  const auto slots = static_cast<int64_t>(self->slot_data_.size());
  self->simulated_slots_ =
      of_stacks == 0 ? 1
                     : static_cast<int32_t>(std::max<int64_t>(1, slots * of_layers / of_stacks));
  self->n_experts_ = std::move(layer_experts);
  self->start();
  out = std::move(self);
  return Status::ok();
}

ExpertStore::~ExpertStore() {
  if (sync_ != nullptr) {
    Lock held = lock();
    stop_ = true;
    held.unlock();
    sync_->work.notify_all();
    for (std::thread& thread : readers_) thread.join();
  }
  for (const File& file : files_) close_file(file.descriptor);
  if (reserved_ != nullptr) release_addresses(reserved_, reserved_bytes_);
}

Status ExpertStore::read_expert(const ExpertStack& stack, int32_t expert, char* out,
                                std::vector<char>& staging) const {
  if (stack.layout == Layout::kRows) return read_bytes(stack, expert, out);
  if (staging.size() < static_cast<size_t>(stack.expert_bytes)) {
    staging.resize(static_cast<size_t>(stack.expert_bytes));
  }
  if (Status s = read_bytes(stack, expert, staging.data()); !s.is_ok()) return s;
  interleave_panels(stack.type, staging.data(), stack.expert_bytes / stack.rows, stack.row_elements,
                    0, stack.rows / kPanelRows, out);
  return Status::ok();
}

Status ExpertStore::read_rows(int32_t stack, int32_t expert, char* out) const {
  return read_bytes(stacks_[static_cast<size_t>(stack)], expert, out);
}

Status ExpertStore::read_bytes(const ExpertStack& stack, int32_t expert, char* out) const {
  const File& file = files_[static_cast<size_t>(stack.file)];
  const int64_t begin = stack.offset + expert * stack.expert_bytes;
  int64_t done = 0;
  while (done < stack.expert_bytes) {
    const int64_t n = read_at(file.descriptor, out + done, stack.expert_bytes - done, begin + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const std::string what = file.path + ": expert " + std::to_string(expert) + " of " +
                               stack.name + " (" + bytes_text(stack.expert_bytes) + " at byte " +
                               std::to_string(begin) + ") cannot be read: ";
      if (n < 0) return Status::invalid(what + std::strerror(errno));
      return Status::invalid(what + "the file ends at byte " + std::to_string(begin + done) +
                             "; it was changed while it was in use: restore it, and load the "
                             "model again");
    }
    done += n;
  }
  return Status::ok();
}

}  // namespace weft
