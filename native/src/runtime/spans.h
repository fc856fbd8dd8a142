// When each thread works on each step. While it is off, a note costs a test.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace weft {

class Spans {
 public:
  // [step][thread][begin of its first piece, end of its last, time in its pieces], nanoseconds of
  // the steady clock; 0 where a thread had no part.
  static constexpr size_t kFields = 3;

  void start(size_t steps, int threads) {
    threads_ = static_cast<size_t>(threads);
    values_.assign(steps * threads_ * kFields, 0);
  }
  void stop() { values_.clear(); }
  const std::vector<int64_t>& values() const { return values_; }

  // Notes a piece of a step, from its making to the end of its scope.
  class Note {
   public:
    explicit Note(int64_t* span) : span_(span), begin_(span == nullptr ? 0 : now()) {}
    ~Note() {
      if (span_ == nullptr) return;
      if (span_[0] == 0) span_[0] = begin_;
      span_[1] = now();
      span_[2] += span_[1] - begin_;
    }
    Note(const Note&) = delete;
    Note& operator=(const Note&) = delete;

   private:
    static int64_t now() {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::steady_clock::now().time_since_epoch())
          .count();
    }
    int64_t* span_;
    int64_t begin_;
  };
  Note note(size_t step, int thread) {
    if (values_.empty()) return Note(nullptr);
    return Note(&values_[(step * threads_ + static_cast<size_t>(thread)) * kFields]);
  }

 private:
  size_t threads_ = 1;
  std::vector<int64_t> values_;  // empty: off
};

}  // namespace weft
