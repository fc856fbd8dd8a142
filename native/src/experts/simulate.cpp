#include "experts/simulate.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace weft {

namespace {

using Cause = Residency::Cause;
using State = Residency::State;

constexpr size_t kFewExperts = 32;  // as in store.cpp

struct Asked {
  int32_t layer;
  std::vector<int32_t> experts;
};

// The steps of a record; false where it is not one.
bool parse(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
           std::vector<Asked>& out) {
  for (size_t i = 0; i < record.size();) {
    if (i + 2 > record.size()) return false;
    const int32_t layer = record[i];
    const int32_t n = record[i + 1];
    i += 2;
    if (layer < 0 || static_cast<size_t>(layer) >= n_experts.size()) return false;
    if (n < 0 || static_cast<size_t>(n) > record.size() - i) return false;
    out.push_back({layer,
                   {record.begin() + static_cast<std::ptrdiff_t>(i),
                    record.begin() + static_cast<std::ptrdiff_t>(i) + n}});
    for (int32_t e : out.back().experts) {
      if (e < 0 || e >= n_experts[static_cast<size_t>(layer)]) return false;
    }
    i += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool simulate_experts(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
                      int32_t n_slots, ExpertPolicy policy, SimulatedExperts& out) {
  std::vector<Asked> steps;
  if (n_slots < 1 || !parse(record, n_experts, steps)) return false;
  Residency books({n_slots}, std::vector<int32_t>(n_experts.size(), 0), n_experts, policy);
  ExpertPredictor predictor(n_experts);
  const Asked* before = nullptr;
  const auto bring = [&](int32_t layer, int32_t expert, Cause cause, bool gently) {
    const int32_t slot = books.victim(layer, gently);
    if (slot < 0) return false;
    books.assign(slot, layer, expert, cause);
    books.slot(slot).state = State::kReady;
    return true;
  };
  for (const Asked& step : steps) {
    books.next_step(step.layer);
    books.spare_none();
    for (int32_t e : step.experts) {
      books.use(step.layer, e);
      books.spare(step.layer, e);
    }
    out.asked += static_cast<int64_t>(step.experts.size());
    for (int32_t e : step.experts) {
      const int32_t slot = books.find(step.layer, e);
      if (slot < 0) continue;
      ++out.hits;
      Cause& cause = books.slot(slot).cause;
      if (cause == Cause::kPredicted) ++out.predicted;
      cause = Cause::kDemand;
    }
    for (int32_t e : step.experts) {
      if (books.find(step.layer, e) < 0) bring(step.layer, e, Cause::kDemand, false);
    }
    if (policy != ExpertPolicy::kPredict || step.experts.size() > kFewExperts) {
      before = nullptr;
      continue;
    }
    if (before != nullptr && before->layer == step.layer - 1) {
      predictor.learn(step.layer, before->experts, step.experts);
    }
    before = &step;
    const auto next = static_cast<size_t>(step.layer) + 1;
    if (next >= n_experts.size()) continue;
    const auto most = static_cast<int32_t>(step.experts.size());
    const auto layer = static_cast<int32_t>(next);
    const std::vector<int32_t> likely = predictor.predict(layer, step.experts, most);
    for (int32_t e : likely) books.spare(layer, e);
    for (int32_t e : likely) {
      if (books.find(layer, e) >= 0) continue;
      if (bring(layer, e, Cause::kPredicted, true)) ++out.guesses;
    }
  }
  return true;
}

ExpertPolicy best_policy(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
                         int32_t n_slots, ExpertPolicy now) {
  double cost[kExpertPolicies] = {};
  int64_t asked = 0;
  for (int i = 0; i < kExpertPolicies; ++i) {
    SimulatedExperts out;
    if (!simulate_experts(record, n_experts, n_slots, static_cast<ExpertPolicy>(i), out))
      return now;
    asked = out.asked;
    const auto wrong = static_cast<double>(out.guesses - out.predicted);
    cost[i] = static_cast<double>(out.asked - out.hits) + 0.5 * wrong;
  }
  const auto best = static_cast<int>(std::min_element(cost, cost + kExpertPolicies) - cost);
  const double gain = cost[static_cast<int>(now)] - cost[best];
  return gain > 0.01 * static_cast<double>(asked) ? static_cast<ExpertPolicy>(best) : now;
}

bool simulate_best(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
                   int32_t n_slots, SimulatedExperts& out) {
  std::vector<Asked> steps;
  if (n_slots < 1 || !parse(record, n_experts, steps)) return false;
  std::vector<size_t> first(n_experts.size() + 1, 0);
  for (size_t i = 0; i < n_experts.size(); ++i) {
    first[i + 1] = first[i] + static_cast<size_t>(n_experts[i]);
  }
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // when the expert of each step is needed next
  std::vector<std::vector<int64_t>> next(steps.size());
  std::vector<int64_t> seen(first.back(), kNever);
  for (size_t s = steps.size(); s-- > 0;) {
    for (int32_t e : steps[s].experts) {
      int64_t& at = seen[first[static_cast<size_t>(steps[s].layer)] + static_cast<size_t>(e)];
      next[s].push_back(at);
      at = static_cast<int64_t>(s);
    }
  }
  std::set<std::pair<int64_t, size_t>> kept;      // by when they are needed next
  std::vector<int64_t> needed(first.back(), -1);  // -1: not kept
  for (size_t s = 0; s < steps.size(); ++s) {
    out.asked += static_cast<int64_t>(steps[s].experts.size());
    for (size_t i = 0; i < steps[s].experts.size(); ++i) {
      const size_t id =
          first[static_cast<size_t>(steps[s].layer)] + static_cast<size_t>(steps[s].experts[i]);
      if (needed[id] >= 0) {
        ++out.hits;
        kept.erase({needed[id], id});
      } else if (kept.size() >= static_cast<size_t>(n_slots)) {
        const auto last = std::prev(kept.end());
        needed[last->second] = -1;
        kept.erase(last);
      }
      needed[id] = next[s][i];
      kept.insert({needed[id], id});
    }
  }
  return true;
}

}  // namespace weft
