#include "experts/store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "threads/pool.h"

namespace weft {

namespace {

using Cause = Residency::Cause;
using State = Residency::State;

constexpr auto kPatience = std::chrono::milliseconds(5);

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// A child process has none of the threads that its parent had, and may find its mutex locked.
ExpertStore::Lock ExpertStore::lock() const {
  if (forks() != forks_) const_cast<ExpertStore*>(this)->recover();
  return Lock(sync_->mutex);
}

void ExpertStore::start() {
  forks_ = forks();
  sync_ = std::make_unique<Sync>();
  for (int i = 0; i < n_readers_; ++i) readers_.emplace_back([this] { reader(); });
}

void ExpertStore::recover() {
  sync_.release();                                            // NOLINT: it may be locked
  new std::vector<std::thread>(std::exchange(readers_, {}));  // NOLINT: they cannot be joined
  demanded_.clear();
  wishes_.clear();
  for (size_t i = 0; i < slot_data_.size(); ++i) {
    const auto slot = static_cast<int32_t>(i);
    if (books_->slot(slot).state == State::kReading) books_->clear(slot);
  }
  start();
}

int32_t ExpertStore::round_size(int32_t stack, int64_t n) const {
  const int32_t pool = books_->pool_of(stack);
  const int32_t slots = books_->last_slot(pool) - books_->first_slot(pool);
  if (n <= slots) return slots;
  return std::max(1, slots / 2);  // the next round is read while this one is computed
}

void ExpertStore::begin(ExpertLease& lease, int32_t stack, std::vector<int32_t> experts,
                        int32_t most) {
  Lock held = lock();
  give_back(lease);
  lease.stack = stack;
  lease.most = most;
  lease.at.assign(static_cast<size_t>(books_->n_experts(stack)), nullptr);
  books_->next_step(stack);
  for (int32_t e : experts) {
    books_->use(stack, e);
    const int32_t slot = books_->find(stack, e);
    if (slot < 0) {
      ++counts_.misses;
      continue;
    }
    Residency::Slot& s = books_->slot(slot);
    const bool there = s.state == State::kReady && s.cause != Cause::kAhead;
    ++(there ? counts_.hits : counts_.misses);
    if (there && s.cause == Cause::kPredicted) ++counts_.predicted;
    s.cause = Cause::kDemand;
  }
  // Experts that are there come first, before others need their slots.
  std::stable_partition(experts.begin(), experts.end(), [&](int32_t e) {
    const int32_t slot = books_->find(stack, e);
    return slot >= 0 && books_->slot(slot).state == State::kReady;
  });
  lease.order = std::move(experts);
  look_ahead(lease);
}

bool ExpertStore::may_give_way(int32_t slot) const {
  const Residency::Slot& s = books_->slot(slot);
  return s.pins == 0 && s.state != State::kReading;
}

bool ExpertStore::enter(ExpertLease& lease, int32_t round) {
  Lock held = lock();
  if (lease.n_rounds() > 1) {  // experts that are done may give way
    for (int32_t slot : lease.slots) books_->unspare(lease.stack, books_->slot(slot).expert);
  }
  give_back(lease);
  const auto n = static_cast<int32_t>(lease.order.size());
  const int32_t first = std::min(n, round * lease.most);
  const int32_t last = std::min(n, first + lease.most);
  // All or nothing: steps of two contexts that each held a part would wait for each other.
  int32_t missing = 0;
  int32_t own = 0;  // slots that nobody uses now, and that this round will
  for (int32_t i = first; i < last; ++i) {
    const int32_t slot = books_->find(lease.stack, lease.order[static_cast<size_t>(i)]);
    if (slot < 0) {
      ++missing;
    } else if (may_give_way(slot)) {
      ++own;
    }
  }
  const int32_t pool = books_->pool_of(lease.stack);
  int32_t wanted = missing == 0 ? 0 : missing + own;
  for (int32_t i = books_->first_slot(pool); i < books_->last_slot(pool) && wanted > 0; ++i) {
    if (may_give_way(i)) --wanted;
  }
  if (wanted > 0) return false;
  for (int32_t i = first; i < n; ++i) {
    books_->spare(lease.stack, lease.order[static_cast<size_t>(i)]);
  }
  for (int32_t i = first; i < last; ++i) {  // before victims are chosen
    const int32_t slot = books_->find(lease.stack, lease.order[static_cast<size_t>(i)]);
    if (slot < 0) continue;
    ++books_->slot(slot).pins;
    books_->slot(slot).cause = Cause::kDemand;  // a reader may have brought it since `begin`
  }
  for (int32_t i = first; i < last; ++i) {
    const int32_t expert = lease.order[static_cast<size_t>(i)];
    int32_t slot = books_->find(lease.stack, expert);
    if (slot < 0) {
      slot = books_->victim(lease.stack, false);
      books_->assign(slot, lease.stack, expert, Cause::kDemand);
      books_->slot(slot).pins = 1;
      demanded_.push_back(slot);
    } else if (books_->slot(slot).state == State::kFailed) {
      books_->slot(slot).state = State::kReading;
      demanded_.push_back(slot);
    }
    lease.slots.push_back(slot);
  }
  lease.round = round;
  lease.entered_ns = now_ns();
  // The next round is read meanwhile.
  const int32_t after = std::min(n, last + lease.most);
  for (int32_t i = last; i < after; ++i) {
    wish(lease.stack, lease.order[static_cast<size_t>(i)], Cause::kAhead);
  }
  if (!demanded_.empty() || !wishes_.empty()) sync_->work.notify_all();
  return true;
}

Status ExpertStore::help(ExpertLease& lease, bool& ready) {
  thread_local std::vector<char> staging;
  Lock held = lock();
  ready = false;
  for (;;) {
    bool all = true;
    for (int32_t slot : lease.slots) {
      const Residency::Slot& s = books_->slot(slot);
      if (s.state == State::kFailed) return failures_[static_cast<size_t>(slot)];
      all = all && s.state == State::kReady;
    }
    if (all) break;
    if (!demanded_.empty()) {
      const int32_t slot = demanded_.front();
      demanded_.pop_front();
      read_one(held, slot, staging);
      continue;
    }
    if (sync_->done.wait_for(held, kPatience) == std::cv_status::timeout) return Status::ok();
  }
  ready = true;
  if (lease.ready) return Status::ok();
  counts_.waited_ns += now_ns() - lease.entered_ns;
  std::fill(lease.at.begin(), lease.at.end(), nullptr);
  for (int32_t slot : lease.slots) {
    lease.at[static_cast<size_t>(books_->slot(slot).expert)] = slot_data(slot);
  }
  lease.ready = true;
  return Status::ok();
}

void ExpertStore::wait_for_slots() {
  Lock held = lock();
  sync_->done.wait_for(held, kPatience);
}

void ExpertStore::leave(ExpertLease& lease) {
  Lock held = lock();
  give_back(lease);
}

void ExpertStore::give_back(ExpertLease& lease) {
  for (int32_t slot : lease.slots) {
    Residency::Slot& s = books_->slot(slot);
    if (s.pins > 0 && --s.pins == 0 && s.state == State::kFailed) books_->clear(slot);
  }
  if (!lease.slots.empty()) sync_->done.notify_all();
  lease.slots.clear();
  lease.round = -1;
  lease.ready = false;
  std::fill(lease.at.begin(), lease.at.end(), nullptr);
}

// Reads the expert of a slot, which is in the state kReading; the mutex is free meanwhile.
void ExpertStore::read_one(Lock& held, int32_t slot, std::vector<char>& staging) {
  const Residency::Slot wanted = books_->slot(slot);
  const ExpertStack& stack = stacks_[static_cast<size_t>(wanted.stack)];
  held.unlock();
  Status status = read_expert(stack, wanted.expert, slot_data(slot), staging);
  held.lock();
  counts_.bytes += stack.expert_bytes;
  Residency::Slot& s = books_->slot(slot);
  if (status.is_ok()) {
    s.state = State::kReady;
  } else if (s.pins > 0) {
    s.state = State::kFailed;
    failures_[static_cast<size_t>(slot)] = std::move(status);
  } else {
    books_->clear(slot);  // nobody waits for it
  }
  sync_->done.notify_all();
}

void ExpertStore::reader() {
  std::vector<char> staging;
  Lock held(sync_->mutex);
  for (;;) {
    sync_->work.wait(
        held, [&] { return stop_ || !demanded_.empty() || !wishes_.empty() || review_due_; });
    if (stop_) return;
    if (!demanded_.empty()) {
      const int32_t slot = demanded_.front();
      demanded_.pop_front();
      read_one(held, slot, staging);
    } else if (!grant_wish(held, staging) && review_due_) {
      review(held);
    }
  }
}

ExpertCounts ExpertStore::counts() const {
  Lock held = lock();
  return counts_;
}

ExpertPolicy ExpertStore::policy() const {
  Lock held = lock();
  return books_->policy();
}

void ExpertStore::record(int64_t most) {
  Lock held = lock();
  record_.clear();
  most_recorded_ = most;
}

std::vector<int32_t> ExpertStore::recorded() const {
  Lock held = lock();
  return record_;
}

}  // namespace weft
