// Checks the tensors of a program that have another layout than rows.
#include <algorithm>

#include "quants/interleave.h"
#include "quants/levels.h"
#include "quants/lookup_layout.h"
#include "runtime/executor.h"

namespace weft {

namespace {

// The elements that rows have a multiple of in the layout of `t`; 0 when its type does not have it.
int64_t block_of(const Tensor& t) {
  if (t.layout == Layout::kLookup) return lookup_block(t.type);
  if (t.layout == Layout::kLevels) return level_block(t.type);
  if (t.layout == Layout::kOrdered && is_quantized(t.type)) return 0;
  const InterleavedFormat* format = interleaved_format(t.type);
  return format == nullptr ? 0 : format->block;
}

// nullptr when the tensor is a contiguous stack of matrices of whole panels, or one matrix that
// may end in rows; otherwise why not.
const char* not_panels(const Tensor& t) {
  const int64_t block = block_of(t);
  if (block == 0) return "its type does not have that layout";
  if (t.ne[0] % block != 0) return "its rows do not have whole blocks of that layout";
  const bool whole = t.ne[1] % kPanelRows == 0;
  const bool ends_in_rows = t.layout == Layout::kInterleaved || t.layout == Layout::kOrdered;
  const bool one = ends_in_rows && t.ne[2] * t.ne[3] == 1;
  if (!whole && !(one && has_panels(t.type, t.ne[1]))) {
    return "its number of rows is not a multiple of 32";
  }
  int64_t stride = dtype_info(t.type).block_size;
  for (int d = 0; d < 4; ++d) {
    if (t.nb[d] != stride) return "it is not contiguous";
    stride *= d == 0 ? t.ne[0] / dtype_info(t.type).block : t.ne[d];
  }
  return nullptr;
}

const char* name(Layout layout) {
  if (layout == Layout::kLevels) return "in the levels layout";
  if (layout == Layout::kOrdered) return "summed in the order of panels";
  return layout == Layout::kLookup ? "in the lookup layout" : "interleaved";
}

}  // namespace

// Repacked tensors are constant weights. No other tensor may overlap one, except as the same whole
// matrix, and steps may only read one as source 0 of a kernel that takes the layout.
Status Executor::check_layouts() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    if (t.layout == Layout::kRows) continue;
    const std::string start =
        "tensor " + program_.tensors[i].name + " is " + name(t.layout) + " but ";
    if (const char* why = not_panels(t); why != nullptr) return Status::invalid(start + why);
    if (std::find(symbolic_.begin(), symbolic_.end(), i) != symbolic_.end()) {
      return Status::invalid(start + "its sizes are symbolic");
    }
    for (size_t k = 0; k < tensors_.size(); ++k) {
      const Tensor& other = tensors_[k];
      if (k == i || program_.tensors[k].buffer != program_.tensors[i].buffer) continue;
      const bool same = other.layout == t.layout && other.type == t.type && other.data == t.data &&
                        std::equal(t.ne, t.ne + 4, other.ne);
      if (!same && overlap(t, other)) {
        return Status::invalid(start + program_.tensors[k].name + " is a view into it");
      }
    }
  }
  const auto repacked = [&](int32_t index) {
    return index >= 0 && tensors_[static_cast<size_t>(index)].layout != Layout::kRows;
  };
  for (const StepDecl& step : program_.steps) {
    const char* op = kOpInfo[static_cast<size_t>(step.op)].name;
    int32_t refused = repacked(step.dst) ? step.dst : -1;
    for (int s = 0; s < kMaxSrc; ++s) {
      const bool taken = s == 0 && (*table_)[step.op].takes_interleaved;
      if (repacked(step.src[s]) && !taken) refused = step.src[s];
    }
    if (refused >= 0) {
      const auto at = static_cast<size_t>(refused);
      return Status::invalid("tensor " + program_.tensors[at].name + " is " +
                             name(tensors_[at].layout) + "; " + op +
                             " can neither write it nor read it as this source");
    }
  }
  return Status::ok();
}

}  // namespace weft
