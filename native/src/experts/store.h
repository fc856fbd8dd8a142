// Experts that stay in a file until a step needs them.
//
// The matrices of the experts lie in slots of an arena. A step takes a lease: it names its experts,
// and when the lease is ready they are in slots, packed as the kernels read them, until it is given
// back. Where a step needs more experts than fit, it takes them in rounds. Threads of the store
// read ahead; threads of the executor that wait for an expert read, too.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "experts/residency.h"
#include "weft/status.h"
#include "weft/types.h"

namespace weft {

// A tensor [row_elements, rows, n_experts] in a file.
struct ExpertStack {
  std::string name;
  int32_t file = 0;
  int64_t offset = 0;        // of the first expert, in the file
  int64_t expert_bytes = 0;  // of one expert
  int32_t n_experts = 0;
  DType type = DType::kF32;
  Layout layout = Layout::kRows;  // in the slots; in the file there are rows
  int64_t rows = 0;
  int64_t row_elements = 0;
  int32_t layer = 0;  // stacks of a layer are read with the same ids
  int32_t pool = 0;
};

// Slots of the same size.
struct ExpertPool {
  int64_t slot_bytes = 0;
  int32_t n_slots = 0;
};

struct ExpertCounts {
  int64_t hits = 0;       // experts that were in a slot when a step asked for them
  int64_t predicted = 0;  // hits that are due to a prediction
  int64_t misses = 0;     // experts that a step had to wait for
  int64_t guesses = 0;    // experts that were read because of a prediction
  int64_t bytes = 0;      // read from files
  int64_t waited_ns = 0;  // that steps have waited for experts
};

class ExpertStore;

// The experts of a store that a step holds.
struct ExpertLease {
  int32_t stack = -1;
  int32_t round = -1;           // the round that is held or being read; -1: none
  int32_t most = 0;             // experts of a round
  std::vector<int32_t> order;   // all experts of the step, those of round 0 first
  std::vector<int32_t> slots;   // of the experts of the round
  std::vector<const char*> at;  // of each expert of the stack: its bytes; nullptr outside the round
  bool ready = false;
  int64_t entered_ns = 0;  // when the round was entered
  int32_t n_rounds() const {
    return most == 0 ? 0 : (static_cast<int32_t>(order.size()) + most - 1) / most;
  }
};

class ExpertStore {
 public:
  // Opens the files. With `chooses`, `policy` is the first one: what was chosen lately is simulated
  // with all of them from time to time, and the best goes on. `arena` has the slots of all pools,
  // in order, and outlives the store. Fails for a file that cannot be opened and for sizes that
  // contradict each other.
  static Status create(const std::vector<std::string>& paths, std::vector<ExpertStack> stacks,
                       std::vector<ExpertPool> pools, char* arena, int64_t arena_bytes,
                       int n_readers, ExpertPolicy policy, bool chooses,
                       std::shared_ptr<ExpertStore>& out);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  const ExpertStack& stack(int32_t i) const { return stacks_[static_cast<size_t>(i)]; }
  int32_t n_stacks() const { return static_cast<int32_t>(stacks_.size()); }
  // An address for the tensor of a stack, which nothing else has and nobody can read.
  char* address(int32_t stack) const { return addresses_[static_cast<size_t>(stack)]; }

  // The experts of a round of a step that may name up to `n` of them.
  int32_t round_size(int32_t stack, int64_t n) const;

  // Begins a lease of `experts` (each once), in rounds of `most`. The lease holds nothing yet.
  void begin(ExpertLease& lease, int32_t stack, std::vector<int32_t> experts, int32_t most);
  // Gives back what the lease holds and takes the slots of a round. False: other steps use too many
  // now, so that nothing was taken; try again after a `help`.
  bool enter(ExpertLease& lease, int32_t round);
  // Reads for the round of a lease, or waits for a few milliseconds. `ready` says whether all
  // experts of the round are there; fails when one cannot be read.
  Status help(ExpertLease& lease, bool& ready);
  // Waits a few milliseconds until a step may have given back slots.
  void wait_for_slots();
  void leave(ExpertLease& lease);

  // Keeps the owner of the arena alive as long as the store.
  void keep(std::shared_ptr<void> owner) { owner_ = std::move(owner); }

  // The bytes of one expert as they are in the file.
  Status read_rows(int32_t stack, int32_t expert, char* out) const;

  ExpertCounts counts() const;
  ExpertPolicy policy() const;
  // Records the experts of every layer, at most `most` numbers from now on; 0 ends it.
  void record(int64_t most);
  // The record: for each step of a layer its number, a count, and `count` experts.
  std::vector<int32_t> recorded() const;

 private:
  struct File {
    std::string path;
    int descriptor = -1;
  };
  struct Wish {
    int32_t stack;
    int32_t expert;
    Residency::Cause cause;
  };
  static constexpr int64_t kStepsBetweenReviews = 128;
  struct Sync {
    std::mutex mutex;
    std::condition_variable work;  // there is something to read
    std::condition_variable done;  // something was read, or given back
  };

  ExpertStore() = default;
  using Lock = std::unique_lock<std::mutex>;
  Lock lock() const;
  void start();
  void recover();
  void reader();
  void read_one(Lock& lock, int32_t slot, std::vector<char>& staging);
  bool grant_wish(Lock& lock, std::vector<char>& staging);
  Status read_expert(const ExpertStack& stack, int32_t expert, char* out,
                     std::vector<char>& staging) const;
  Status read_bytes(const ExpertStack& stack, int32_t expert, char* out) const;
  void give_back(ExpertLease& lease);
  bool may_give_way(int32_t slot) const;
  void look_ahead(const ExpertLease& lease);
  void remember(const ExpertLease& lease, int32_t layer);
  void review(Lock& lock);
  void wish(int32_t stack, int32_t expert, Residency::Cause cause);
  char* slot_data(int32_t slot) const { return slot_data_[static_cast<size_t>(slot)]; }

  std::shared_ptr<void> owner_;  // goes last
  std::vector<File> files_;
  std::vector<ExpertStack> stacks_;
  std::vector<std::vector<int32_t>> layers_;  // the stacks of each
  std::vector<char*> addresses_;
  std::vector<char*> slot_data_;
  char* reserved_ = nullptr;
  size_t reserved_bytes_ = 0;
  int n_readers_ = 0;

  // A child process starts with these anew, because threads of its parent may have held them.
  mutable std::unique_ptr<Sync> sync_;
  std::vector<std::thread> readers_;
  uint32_t forks_ = 0;
  bool stop_ = false;

  // Guarded by the mutex.
  std::unique_ptr<Residency> books_;
  std::unique_ptr<ExpertPredictor> predictor_;
  std::deque<int32_t> demanded_;  // slots that a step waits for, not being read yet
  std::deque<Wish> wishes_;
  std::vector<Status> failures_;  // of each slot
  std::vector<int32_t> before_;   // the experts of the layer that was asked for last
  int32_t layer_before_ = -1;
  ExpertCounts counts_;
  std::vector<int32_t> record_;
  int64_t most_recorded_ = 0;
  bool chooses_ = false;
  std::vector<int32_t> lately_;  // a record of the last steps
  int64_t steps_to_review_ = 0;  // of the first layer
  bool review_due_ = false;
  std::vector<int32_t> n_experts_;  // of each layer
  int32_t simulated_slots_ = 0;
};

}  // namespace weft
