// Which experts are in the slots of an arena, and which one gives way when another is needed.
//
// A stack is a tensor of expert matrices; its experts go to the slots of one pool. This class keeps
// the books only: it reads nothing and locks nothing, so that the store (store.h) and the simulator
// (simulate.h) decide by the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

enum class ExpertPolicy : int32_t {
  kLru,      // the expert whose last use is longest ago gives way
  kLfu,      // the one that was used least gives way; what it was used counts half every 32 steps
  kPredict,  // as kLfu, and experts of the next layer are read before it asks for them
};
inline constexpr int kExpertPolicies = 3;

class Residency {
 public:
  enum class State : uint8_t { kFree, kReading, kReady, kFailed };
  // Why the bytes of a slot were asked for, until a step uses them.
  enum class Cause : uint8_t { kDemand, kAhead, kPredicted };

  struct Slot {
    int32_t stack = -1;
    int32_t expert = -1;
    int32_t pins = 0;  // steps that use it now
    State state = State::kFree;
    Cause cause = Cause::kDemand;
  };

  // `stack_pool` and `stack_experts` have the pool and the number of experts of each stack.
  Residency(const std::vector<int32_t>& pool_slots, const std::vector<int32_t>& stack_pool,
            const std::vector<int32_t>& stack_experts, ExpertPolicy policy);

  // Counts a step of this stack, and the use of an expert in it.
  void next_step(int32_t stack) { ++stacks_[static_cast<size_t>(stack)].step; }
  void use(int32_t stack, int32_t expert);

  // Makes another policy decide from now on, with all uses so far.
  void set_policy(ExpertPolicy policy) { policy_ = policy; }
  ExpertPolicy policy() const { return policy_; }

  // The slot of an expert, or -1.
  int32_t find(int32_t stack, int32_t expert) const {
    return stacks_[static_cast<size_t>(stack)].slot[static_cast<size_t>(expert)];
  }
  Slot& slot(int32_t i) { return slots_[static_cast<size_t>(i)]; }
  const Slot& slot(int32_t i) const { return slots_[static_cast<size_t>(i)]; }
  // The slots of a pool: first (inclusive) and last (exclusive).
  int32_t first_slot(int32_t pool) const { return first_[static_cast<size_t>(pool)]; }
  int32_t last_slot(int32_t pool) const { return first_[static_cast<size_t>(pool) + 1]; }
  int32_t pool_of(int32_t stack) const { return stacks_[static_cast<size_t>(stack)].pool; }
  int32_t n_experts(int32_t stack) const {
    return static_cast<int32_t>(stacks_[static_cast<size_t>(stack)].slot.size());
  }

  // Keeps an expert in its slot until `spare_none`, unless every other slot is in use.
  void spare(int32_t stack, int32_t expert);
  void unspare(int32_t stack, int32_t expert);
  void spare_none();

  // The slot of the stack's pool that is free or whose expert should give way; -1 where all are in
  // use. Experts that are spared give way last, and not at all where `gently`.
  int32_t victim(int32_t stack, bool gently) const;

  // Gives a slot to an expert, whose state is kReading then; the one in it is forgotten.
  void assign(int32_t slot, int32_t stack, int32_t expert, Cause cause);
  void clear(int32_t slot);

 private:
  struct Stack {
    // The larger, the longer an expert stays.
    const std::vector<float>& scores(ExpertPolicy policy) const {
      return policy == ExpertPolicy::kLru ? last : count;
    }
    int32_t pool = 0;
    int64_t step = 0;
    std::vector<int32_t> slot;     // of each expert, or -1
    std::vector<float> last;       // the step of the last use of each expert
    std::vector<float> count;      // of its uses, see use()
    std::vector<uint32_t> spared;  // the round of sparing in which it was spared last
  };

  ExpertPolicy policy_;
  std::vector<Stack> stacks_;
  std::vector<Slot> slots_;
  std::vector<int32_t> first_;
  uint32_t sparing_ = 1;
};

// Learns which experts of a layer follow which of the layer before it.
class ExpertPredictor {
 public:
  // `n_experts` has the number of experts of each layer, in order.
  explicit ExpertPredictor(const std::vector<int32_t>& n_experts);

  // Counts that a token which chose `before` in layer - 1 chose `after` in `layer`.
  void learn(int32_t layer, const std::vector<int32_t>& before, const std::vector<int32_t>& after);
  // At most `most` experts of `layer` that probably follow `before`, the likeliest first.
  std::vector<int32_t> predict(int32_t layer, const std::vector<int32_t>& before,
                               int32_t most) const;

 private:
  struct Layer {
    int32_t n_before = 0;
    int32_t n_after = 0;
    std::vector<uint16_t> counts;  // [n_before, n_after]
    std::vector<uint32_t> totals;  // [n_before]
  };
  std::vector<Layer> layers_;
};

}  // namespace weft
