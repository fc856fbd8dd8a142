// Simulates a policy on recorded routing, without reading experts.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/residency.h"

namespace weft {

struct SimulatedExperts {
  int64_t asked = 0;
  int64_t hits = 0;
  int64_t guesses = 0;    // read because of a prediction
  int64_t predicted = 0;  // hits that are due to one
};

// Runs a record of ExpertStore over `n_slots` slots, each for an expert of a layer with `n_experts`
// experts. Empty where the record is not one.
bool simulate_experts(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
                      int32_t n_slots, ExpertPolicy policy, SimulatedExperts& out);

// The policy that does best, or `now` where none is clearly better. A wrong prediction costs
// half a miss: it is read while others compute.
ExpertPolicy best_policy(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
                         int32_t n_slots, ExpertPolicy now);

// The same with knowledge of what comes: the expert gives way that is needed last (Belady). No
// policy has more hits without predictions.
bool simulate_best(const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts,
                   int32_t n_slots, SimulatedExperts& out);

}  // namespace weft
