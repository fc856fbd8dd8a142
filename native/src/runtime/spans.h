// Records when each thread works on each step. While recording is off, a note costs one test.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace weft {

class Spans {
 public:
  // values() is an array [step][thread][kFields]: the begin of the thread's first piece, the end of
  // its last piece, and the time in all its pieces, in nanoseconds (the first two on the steady
  // clock). All are 0 where the thread had no piece.
  static constexpr size_t kFields = 3;

  void start(size_t steps, int threads) {
    threads_ = static_cast<size_t>(threads);
    values_.assign(steps * threads_ * kFields, 0);
  }
  void stop() { values_.clear(); }
  const std::vector<int64_t>& values() const { return values_; }

  // Records a piece of a step, from the construction of the note to the end of its scope.
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
  std::vector<int64_t> values_;  // empty while recording is off
};

}  // namespace weft
