// What a store reads before a step asks for it, and the policy by which it does.
#include <utility>

#include "experts/simulate.h"
#include "experts/store.h"

namespace weft {

namespace {

using Cause = Residency::Cause;

// Predictions are for steps of few tokens: with more, a layer asks for most experts anyway.
constexpr size_t kFewExperts = 32;
constexpr size_t kMostLately = size_t{1} << 18;  // numbers of the record that is simulated

}  // namespace

// The first request of a layer tells which experts its other tensors will need, and which experts
// the next layer will probably need.
void ExpertStore::look_ahead(const ExpertLease& lease) {
  const ExpertStack& stack = stacks_[static_cast<size_t>(lease.stack)];
  const std::vector<int32_t>& stacks = layers_[static_cast<size_t>(stack.layer)];
  if (stacks.front() != lease.stack) return;
  remember(lease, stack.layer);
  wishes_.clear();
  books_->spare_none();
  const bool few = lease.order.size() <= kFewExperts;
  const bool fits = static_cast<int32_t>(lease.order.size()) <= lease.most;
  if (fits) {
    for (int32_t other : stacks) {
      for (int32_t e : lease.order) {
        books_->spare(other, e);
        if (other != lease.stack) wish(other, e, Cause::kAhead);
      }
    }
  }
  if (books_->policy() == ExpertPolicy::kPredict && few && fits) {
    if (layer_before_ == stack.layer - 1 && !before_.empty()) {
      predictor_->learn(stack.layer, before_, lease.order);
    }
    const auto next = static_cast<size_t>(stack.layer) + 1;
    if (next < layers_.size()) {
      const std::vector<int32_t> likely = predictor_->predict(
          static_cast<int32_t>(next), lease.order, static_cast<int32_t>(lease.order.size()));
      for (int32_t other : layers_[next]) {
        for (int32_t e : likely) {
          books_->spare(other, e);
          wish(other, e, Cause::kPredicted);
        }
      }
    }
    before_ = lease.order;
    layer_before_ = stack.layer;
  } else {
    layer_before_ = -1;
  }
  if (!wishes_.empty()) sync_->work.notify_all();
}

void ExpertStore::remember(const ExpertLease& lease, int32_t layer) {
  const auto append = [&](std::vector<int32_t>& record) {
    record.push_back(layer);
    record.push_back(static_cast<int32_t>(lease.order.size()));
    record.insert(record.end(), lease.order.begin(), lease.order.end());
  };
  if (static_cast<int64_t>(record_.size() + lease.order.size()) + 2 <= most_recorded_) {
    append(record_);
  }
  if (!chooses_) return;
  if (lately_.size() + lease.order.size() + 2 <= kMostLately) append(lately_);
  if (layer == 0 && --steps_to_review_ == 0) {
    steps_to_review_ = kStepsBetweenReviews;
    review_due_ = true;
    sync_->work.notify_one();
  }
}

// Simulates all policies with what was chosen since the last review; the mutex is free meanwhile.
void ExpertStore::review(Lock& held) {
  review_due_ = false;
  const std::vector<int32_t> record = std::exchange(lately_, {});
  const ExpertPolicy now = books_->policy();
  held.unlock();
  const ExpertPolicy best = best_policy(record, n_experts_, simulated_slots_, now);
  held.lock();
  books_->set_policy(best);
}

void ExpertStore::wish(int32_t stack, int32_t expert, Cause cause) {
  if (n_readers_ > 0 && books_->find(stack, expert) < 0) wishes_.push_back({stack, expert, cause});
}

// Reads ahead for the first wish that still needs it; false where there is none.
bool ExpertStore::grant_wish(Lock& held, std::vector<char>& staging) {
  while (!wishes_.empty()) {
    const Wish wanted = wishes_.front();
    wishes_.pop_front();
    if (books_->find(wanted.stack, wanted.expert) >= 0) continue;
    const int32_t slot = books_->victim(wanted.stack, true);
    if (slot < 0) continue;
    books_->assign(slot, wanted.stack, wanted.expert, wanted.cause);
    if (wanted.cause == Cause::kPredicted) ++counts_.guesses;
    read_one(held, slot, staging);
    return true;
  }
  return false;
}

}  // namespace weft
