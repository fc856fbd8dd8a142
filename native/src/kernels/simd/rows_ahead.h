// Rows that will be read next, prefetched a few lines at each step of the work before them: a burst
// of requests would fill the queue of outstanding lines, and the work would wait.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

// kLocality: 3 for rows that the first cache keeps, 2 for those that the second one does.
template <int kLocality>
class RowsAhead {
 public:
  // Nothing.
  RowsAhead() = default;
  // `n` rows of `bytes` bytes, `stride` bytes apart, spread over `steps` steps.
  RowsAhead(const char* rows, int64_t stride, int64_t bytes, int64_t n, int64_t steps)
      : row_(rows), stride_(stride), bytes_(bytes), left_(n) {
    per_step_ = (n * ((bytes + 63) / 64) + steps - 1) / max64(1, steps);
  }

  void step() {
    for (int64_t i = 0; i < per_step_ && left_ > 0; ++i) {
      __builtin_prefetch(row_ + at_, 0, kLocality);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      row_ += stride_;
      --left_;
    }
  }

 private:
  const char* row_ = nullptr;
  int64_t stride_ = 0;
  int64_t bytes_ = 0;
  int64_t left_ = 0;      // rows
  int64_t at_ = 0;        // of the row, in bytes
  int64_t per_step_ = 0;  // lines
};

}  // namespace weft::WEFT_TARGET
