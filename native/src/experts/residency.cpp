#include "experts/residency.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace weft {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kHalfLife = 32;           // steps after which a use counts half
constexpr uint32_t kMostCounted = 60000;  // counts of a row are halved beyond it

}  // namespace

Residency::Residency(const std::vector<int32_t>& pool_slots, const std::vector<int32_t>& stack_pool,
                     const std::vector<int32_t>& stack_experts, ExpertPolicy policy)
    : policy_(policy), stacks_(stack_pool.size()), first_(1, 0) {
  for (int32_t n : pool_slots) first_.push_back(first_.back() + n);
  slots_.resize(static_cast<size_t>(first_.back()));
  for (size_t i = 0; i < stacks_.size(); ++i) {
    const auto n = static_cast<size_t>(stack_experts[i]);
    stacks_[i].pool = stack_pool[i];
    stacks_[i].slot.assign(n, -1);
    stacks_[i].last.assign(n, kNever);
    stacks_[i].count.assign(n, kNever);
    stacks_[i].spared.assign(n, 0);
  }
}

// A count is the logarithm of a sum of 2^(step / half life) over all uses: sums compare as decayed
// counts do at any later step, so that time changes none of them.
void Residency::use(int32_t stack, int32_t expert) {
  Stack& s = stacks_[static_cast<size_t>(stack)];
  const auto e = static_cast<size_t>(expert);
  const auto step = static_cast<float>(s.step);
  s.last[e] = step;
  const float now = step / kHalfLife;
  const float high = std::max(s.count[e], now);
  s.count[e] = high + std::log2(std::exp2(s.count[e] - high) + std::exp2(now - high));
}

void Residency::spare(int32_t stack, int32_t expert) {
  stacks_[static_cast<size_t>(stack)].spared[static_cast<size_t>(expert)] = sparing_;
}

void Residency::unspare(int32_t stack, int32_t expert) {
  stacks_[static_cast<size_t>(stack)].spared[static_cast<size_t>(expert)] = 0;
}

void Residency::spare_none() { ++sparing_; }

int32_t Residency::victim(int32_t stack, bool gently) const {
  const int32_t pool = pool_of(stack);
  int32_t best = -1;
  int32_t best_spared = -1;
  float least = std::numeric_limits<float>::infinity();
  float least_spared = least;
  for (int32_t i = first_slot(pool); i < last_slot(pool); ++i) {
    const Slot& slot = slots_[static_cast<size_t>(i)];
    if (slot.state == State::kFree) return i;
    if (slot.pins > 0 || slot.state == State::kReading) continue;
    const Stack& s = stacks_[static_cast<size_t>(slot.stack)];
    const auto e = static_cast<size_t>(slot.expert);
    const float score = s.scores(policy_)[e];
    if (s.spared[e] == sparing_) {
      if (score < least_spared) {
        least_spared = score;
        best_spared = i;
      }
    } else if (score < least) {
      least = score;
      best = i;
    }
  }
  return best >= 0 || gently ? best : best_spared;
}

void Residency::assign(int32_t slot, int32_t stack, int32_t expert, Cause cause) {
  clear(slot);
  slots_[static_cast<size_t>(slot)] = {stack, expert, 0, State::kReading, cause};
  stacks_[static_cast<size_t>(stack)].slot[static_cast<size_t>(expert)] = slot;
}

void Residency::clear(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (s.state != State::kFree) {
    stacks_[static_cast<size_t>(s.stack)].slot[static_cast<size_t>(s.expert)] = -1;
  }
  s = Slot();
}

ExpertPredictor::ExpertPredictor(const std::vector<int32_t>& n_experts) {
  layers_.resize(n_experts.size());
  for (size_t i = 1; i < layers_.size(); ++i) {
    layers_[i].n_before = n_experts[i - 1];
    layers_[i].n_after = n_experts[i];
  }
}

void ExpertPredictor::learn(int32_t layer, const std::vector<int32_t>& before,
                            const std::vector<int32_t>& after) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  const auto n = static_cast<size_t>(l.n_after);
  if (l.counts.empty()) {  // a layer takes memory once it is used
    l.counts.assign(static_cast<size_t>(l.n_before) * n, 0);
    l.totals.assign(static_cast<size_t>(l.n_before), 0);
  }
  for (int32_t i : before) {
    uint16_t* row = l.counts.data() + static_cast<size_t>(i) * n;
    uint32_t& total = l.totals[static_cast<size_t>(i)];
    for (int32_t j : after) ++row[j];
    total += static_cast<uint32_t>(after.size());
    if (total < kMostCounted) continue;
    for (size_t j = 0; j < n; ++j) row[j] = static_cast<uint16_t>(row[j] / 2);
    total = std::accumulate(row, row + n, 0U);
  }
}

std::vector<int32_t> ExpertPredictor::predict(int32_t layer, const std::vector<int32_t>& before,
                                              int32_t most) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  if (l.counts.empty()) return {};
  const auto n = static_cast<size_t>(l.n_after);
  std::vector<float> chance(n, 0.0F);
  for (int32_t i : before) {
    const uint32_t total = l.totals[static_cast<size_t>(i)];
    if (total == 0) continue;
    const uint16_t* row = l.counts.data() + static_cast<size_t>(i) * n;
    for (size_t j = 0; j < n; ++j)
      chance[j] += static_cast<float>(row[j]) / static_cast<float>(total);
  }
  std::vector<int32_t> best;
  for (size_t j = 0; j < n; ++j) {
    if (chance[j] > 0) best.push_back(static_cast<int32_t>(j));
  }
  const auto count = std::min(best.size(), static_cast<size_t>(most));
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = chance[static_cast<size_t>(a)];
    const float y = chance[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count), best.end(),
                    likelier);
  best.resize(count);
  return best;
}

}  // namespace weft
