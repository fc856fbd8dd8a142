#include "delegate.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <algorithm>
#include <string_view>

#include "complain.h"

namespace weft::et {

namespace {

Error invalid(const Status& status, const char* what) {
  complain(std::string(what) + ": " + status.message());
  return Error::InvalidProgram;
}

std::string text_of(const EValue& arg) {
  std::string sizes;
  for (const auto size : arg.toTensor().sizes()) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  return "[" + sizes + "] of " + executorch::runtime::toString(arg.toTensor().scalar_type());
}

}  // namespace

// ---- init ---------------------------------------------------------------------------------------

Result<std::unique_ptr<Delegate>> Delegate::create(BackendInitContext& context,
                                                   const FreeableBuffer& processed) {
  std::unique_ptr<Delegate> self(new Delegate());
  if (Status s = read_blob(processed.data(), processed.size(), self->blob_); !s.is_ok()) {
    return invalid(s, "the delegated program cannot be read");
  }
  int threads = self->blob_.threads;
  for (const auto& option : context.runtime_specs()) {
    const int* number = std::get_if<int>(&option.value);
    if (std::string_view(option.key) != "threads" || number == nullptr) {
      complain("load-time option " + std::string(option.key) +
               " is not known; weft takes \"threads\", a number");
      return Error::InvalidArgument;
    }
    threads = *number;
  }
  if (threads < 0 || threads > 1024) {
    complain("threads must be 0 (all cores) to 1024, not " + std::to_string(threads));
    return Error::InvalidArgument;
  }
  self->target_ = best_target();
  if (self->target_ == nullptr) {
    complain("this processor can run none of the kernel targets that the delegate was built with");
    return Error::NotSupported;
  }
  self->pool_ = shared_pool(threads);
  if (const Error e = self->take_memory(context.get_named_data_map()); e != Error::Ok) return e;
  if (const Error e = self->start(threads); e != Error::Ok) return e;
  return self;
}

Error Delegate::take_memory(const NamedDataMap* map) {
  for (size_t i = 0; i < blob_.buffers.size(); ++i) {
    const Result<Block> block = find_block(i, map);
    if (!block.ok()) {
      complain("buffer " + std::to_string(i) + " of " + std::to_string(blob_.program.buffers[i]) +
               " bytes, named '" + blob_.buffers[i].key + "', has no memory");
      return block.error();
    }
    blocks_.push_back(block.get());
  }
  return Error::Ok;
}

Result<Block> Delegate::find_block(size_t buffer, const NamedDataMap* map) {
  const BufferInfo& info = blob_.buffers[buffer];
  const int64_t size = blob_.program.buffers[buffer];
  if (info.memory == Memory::kConstant) {
    Repack repack;
    bool repacks = false;
    if (const Error e = wanted_layout(buffer, repack, repacks); e != Error::Ok) return e;
    const Result<std::shared_ptr<Constant>> constant = find_constant(
        map, info.key, static_cast<size_t>(size), repacks ? &repack : nullptr, *pool_);
    if (!constant.ok()) return constant.error();
    constants_.push_back(constant.get());
    const Constant& bytes = *constants_.back();
    // read_blob has checked that no step writes there.
    return Block{const_cast<char*>(bytes.data), static_cast<int64_t>(bytes.size)};
  }
  if (info.memory == Memory::kState) {
    const Result<std::shared_ptr<State>> state =
        find_state(map, info.name, info.key, static_cast<size_t>(size), blob_.share_state);
    if (!state.ok()) return state.error();
    states_.push_back(state.get());
    return Block{states_.back()->pages.data(), size};
  }
  pages_.push_back(std::make_unique<Pages>());
  if (!pages_.back()->allocate(static_cast<size_t>(size), true))
    return Error::MemoryAllocationFailed;
  return Block{pages_.back()->data(), size};
}

// The tensor of a constant that is stored or wanted in another layout than rows; nullptr when there
// is none.
const TensorDecl* Delegate::repacked_tensor(size_t buffer) const {
  const Layout stored = blob_.buffers[buffer].stored;
  for (const TensorDecl& t : blob_.program.tensors) {
    const bool here = static_cast<size_t>(t.buffer) == buffer;
    if (here && (t.layout != Layout::kRows || stored != Layout::kRows)) return &t;
  }
  return nullptr;
}

// Sets `repack` to the way from the layout of a constant in the file to the layout that the kernels
// of this machine read, and `repacks` to whether they differ.
Error Delegate::wanted_layout(size_t buffer, Repack& repack, bool& repacks) {
  const TensorDecl* matrix = repacked_tensor(buffer);
  if (matrix == nullptr) return Error::Ok;
  const TypeOps& type = target_->table().type(matrix->type);
  repack.type = matrix->type;
  repack.from = blob_.buffers[buffer].stored;
  repack.to = matrix->layout;
  if ((repack.to == Layout::kInterleaved && !type.matmul_interleaved) ||
      (repack.to == Layout::kLevels && !type.matmul_levels) ||
      (repack.to == Layout::kLookup && !type.matmul_lookup)) {
    repack.to = Layout::kRows;
  }
  repack.row_elements = matrix->ne[0].value;
  repack.rows = matrix->ne[1].value;
  for (int d = 0; d < 4; ++d) {
    if (matrix->ne[d].expr >= 0) return Error::InvalidProgram;
    if (d > 1 && __builtin_mul_overflow(repack.rows, matrix->ne[d].value, &repack.rows)) {
      return Error::InvalidProgram;
    }
  }
  for (TensorDecl& t : blob_.program.tensors) {
    if (static_cast<size_t>(t.buffer) == buffer) t.layout = repack.to;
  }
  repacks = repack.from != repack.to;
  return Error::Ok;
}

Error Delegate::start(int threads) {
  const auto place = [&](const Value& value) {
    if (value.tensor < 0) return Place{};
    const TensorDecl& t = blob_.program.tensors[static_cast<size_t>(value.tensor)];
    const auto buffer = static_cast<size_t>(t.buffer);
    const Memory memory = blob_.buffers[buffer].memory;
    const bool is_argument = memory == Memory::kInput || memory == Memory::kOutput;
    return Place{buffer, is_argument && t.offset.expr < 0 && t.offset.value == 0};
  };
  for (const Value& v : blob_.inputs) input_places_.push_back(place(v));
  std::vector<int> users(blob_.buffers.size(), 0);
  for (const Value& v : blob_.outputs) {
    output_places_.push_back(place(v));
    if (v.tensor >= 0) ++users[output_places_.back().buffer];
  }
  for (Place& output : output_places_) {
    // An input that is returned is copied, and so are outputs that share a buffer.
    output.owned = output.owned && blob_.buffers[output.buffer].memory == Memory::kOutput &&
                   users[output.buffer] == 1;
  }
  copies_out_.resize(blob_.outputs.size());
  const Status s = Executor::create(blob_.program, blocks_, *target_, pool_, executor_);
  if (!s.is_ok()) return invalid(s, "the delegated program cannot run here");
  // The pool may have more threads, for another delegate.
  executor_->set_threads(threads > 0 ? threads : usable_cores());
  return Error::Ok;
}

// ---- a call -------------------------------------------------------------------------------------

Error Delegate::execute(BackendExecutionContext& context, Span<EValue*> args) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (args.size() != blob_.inputs.size() + blob_.outputs.size()) {
    complain("the call has " + std::to_string(args.size()) + " arguments; the program has " +
             std::to_string(blob_.inputs.size()) + " inputs and " +
             std::to_string(blob_.outputs.size()) + " outputs");
    return Error::InvalidProgram;
  }
  if (const Error e = resolve(args); e != Error::Ok) return e;
  taken_.clear();
  for (size_t i = 0; i < blob_.inputs.size(); ++i) {
    if (const Error e = bind_input(i, *args[i]); e != Error::Ok) return e;
  }
  for (size_t i = 0; i < blob_.outputs.size(); ++i) {
    if (const Error e = bind_output(i, *args[blob_.inputs.size() + i]); e != Error::Ok) return e;
  }
  EventTracer* const tracer = context.event_tracer();
  if (tracer != nullptr) begin_trace(*tracer);
  const Status status = executor_->run(symbols_, {});
  if (tracer != nullptr) end_trace(*tracer);
  if (!status.is_ok()) {
    // The inputs have no result: an index is outside of its tensor, or an integer is divided by 0.
    complain("a run failed: " + status.message());
    return Error::InvalidArgument;
  }
  return copy_outputs(args);
}

// Computes the values of the symbols from the sizes of the inputs.
Error Delegate::resolve(Span<EValue*> args) {
  symbols_.clear();
  for (size_t i = 0; i < blob_.symbols.size(); ++i) {
    const SymbolSource& source = blob_.symbols[i];
    const Symbol& symbol = blob_.program.symbols[i];
    const EValue& arg = *args[static_cast<size_t>(source.input)];
    int64_t value = 0;
    if (source.dim < 0) {
      if (!arg.isInt()) return Error::InvalidArgument;
      value = arg.toInt();
    } else {
      if (!arg.isTensor() || source.dim >= arg.toTensor().dim()) return Error::InvalidArgument;
      value = arg.toTensor().size(source.dim);
    }
    value -= source.add;
    const bool fits = value % source.mul == 0;
    value /= source.mul;
    if (!fits || value < symbol.min || value > symbol.max) {
      complain("size " + symbol.name + " is " + std::to_string(value) +
               "; the model was exported for " + std::to_string(symbol.min) + " to " +
               std::to_string(symbol.max));
      return Error::InvalidArgument;
    }
    symbols_.push_back(value);
  }
  const Status s = blob_.program.evaluate(symbols_.data(), exprs_);
  return s.is_ok() ? Error::Ok : invalid(s, "the sizes of this call have no meaning");
}

// A tensor of the program at the sizes of this call, in the own memory of its buffer; its data is
// nullptr when it does not fit there.
Tensor Delegate::inside(int32_t tensor) const {
  const TensorDecl& decl = blob_.program.tensors[static_cast<size_t>(tensor)];
  Tensor t;
  t.type = decl.type;
  for (int d = 0; d < 4; ++d) {
    t.ne[d] = value_of(decl.ne[d], exprs_);
    t.nb[d] = value_of(decl.nb[d], exprs_);
  }
  const Block& block = blocks_[static_cast<size_t>(decl.buffer)];
  const int64_t offset = value_of(decl.offset, exprs_);
  // The executor checks this too, but only after inputs have been copied.
  const bool positive = std::all_of(t.ne, t.ne + 4, [](int64_t n) { return n >= 0; }) &&
                        std::all_of(t.nb, t.nb + 4, [](int64_t n) { return n >= 0; });
  const int64_t end = positive ? extent(t) : -1;
  const bool fits = offset >= 0 && end >= 0 && offset <= block.size && end <= block.size - offset;
  t.data = fits ? block.data + offset : nullptr;
  return t;
}

Error Delegate::bind_input(size_t i, const EValue& arg) {
  const Value& value = blob_.inputs[i];
  if (value.scalar_type == kIgnored) return Error::Ok;
  if (value.scalar_type == kInteger) {
    const bool same = arg.isInt() && arg.toInt() == value_of(value.dims[0], exprs_);
    return same ? Error::Ok : Error::InvalidArgument;
  }
  if (!arg.isTensor()) return Error::InvalidArgument;
  const auto& tensor = arg.toTensor();
  bool same = tensor.dim() == static_cast<ssize_t>(value.dims.size());
  for (size_t d = 0; same && d < value.dims.size(); ++d) {
    same = tensor.size(static_cast<ssize_t>(d)) == value_of(value.dims[d], exprs_);
  }
  if (!same || static_cast<int>(tensor.scalar_type()) != value.scalar_type) {
    complain("input " + value.name + " is " + text_of(arg) +
             "; the program was exported for another shape or type");
    return Error::InvalidArgument;
  }
  if (value.tensor < 0) return Error::Ok;
  return bind(input_places_[i], view_of(tensor), value, true);
}

Error Delegate::bind_output(size_t i, EValue& arg) {
  const Value& value = blob_.outputs[i];
  copies_out_[i] = value.tensor >= 0;
  if (value.scalar_type == kInteger) arg = EValue(value_of(value.dims[0], exprs_));
  if (value.tensor < 0) return Error::Ok;
  if (!arg.isTensor()) return Error::InvalidProgram;
  executorch::aten::Tensor tensor = arg.toTensor();
  executorch::aten::SizesType sizes[View::kMaxDims];
  bool same = tensor.dim() == static_cast<ssize_t>(value.dims.size());
  for (size_t d = 0; same && d < value.dims.size(); ++d) {
    sizes[d] = static_cast<executorch::aten::SizesType>(value_of(value.dims[d], exprs_));
  }
  if (!same || static_cast<int>(tensor.scalar_type()) != value.scalar_type) {
    complain("output " + value.name + " is " + text_of(arg) +
             "; the program gives another number of sizes or another type");
    return Error::InvalidProgram;
  }
  if (const Error e = executorch::runtime::resize_tensor(tensor, {sizes, value.dims.size()});
      e != Error::Ok) {
    return e;
  }
  if (!output_places_[i].owned) return Error::Ok;
  copies_out_[i] = false;
  return bind(output_places_[i], view_of(tensor), value, false);
}

// Makes the buffer of an argument the caller's memory where both have the same elements in the same
// order; otherwise copies the input, or has the output copied after the run.
Error Delegate::bind(const Place& place, const View& outside, const Value& value, bool is_input) {
  const Tensor tensor = inside(value);
  const View view = view_of(tensor);
  const int64_t count = view.count();
  if (tensor.data == nullptr || count != outside.count() || outside.element == Element::kNone ||
      (outside.data == nullptr && count > 0)) {
    complain(value.name + " does not fit the program's tensor");
    return Error::InvalidArgument;
  }
  const bool bytes = view.element == Element::kI8 && outside.element == Element::kBool;
  const bool alike = (view.element == outside.element || bytes) && view.is_dense() &&
                     outside.is_dense() && count > 0 &&
                     reinterpret_cast<uintptr_t>(outside.data) % 8 == 0;
  const auto index = &value - (is_input ? blob_.inputs.data() : blob_.outputs.data());
  if (alike && place.owned && !is_taken(outside)) {
    const Block block = {outside.data, count * bytes_of(outside.element)};
    if (executor_->move_buffer(place.buffer, block).is_ok()) {
      taken_.push_back(block);
      return Error::Ok;
    }
  }
  if (!executor_->move_buffer(place.buffer, blocks_[place.buffer]).is_ok()) return Error::Internal;
  if (is_input) {
    copy(outside, view);
  } else {
    copies_out_[static_cast<size_t>(index)] = true;
  }
  return Error::Ok;
}

// Whether the memory overlaps that of another argument, which a step might write while another
// reads it.
bool Delegate::is_taken(const View& view) const {
  const char* end = view.data + view.count() * bytes_of(view.element);
  return std::any_of(taken_.begin(), taken_.end(), [&](const Block& block) {
    return view.data < block.data + block.size && block.data < end;
  });
}

Error Delegate::copy_outputs(Span<EValue*> args) {
  for (size_t i = 0; i < blob_.outputs.size(); ++i) {
    if (!copies_out_[i]) continue;
    const Value& value = blob_.outputs[i];
    const View outside = view_of(args[blob_.inputs.size() + i]->toTensor());
    const size_t buffer = output_places_[i].buffer;
    Tensor tensor = inside(value);
    if (tensor.data != nullptr) {
      // An input that is returned may be in the caller's memory.
      tensor.data = executor_->address(buffer) + (tensor.data - blocks_[buffer].data);
    }
    const View view = view_of(tensor);
    if (tensor.data == nullptr || view.count() != outside.count() ||
        outside.element == Element::kNone || view.element == Element::kNone) {
      complain("output " + value.name + " does not fit the program's tensor");
      return Error::InvalidProgram;
    }
    copy(view, outside);
  }
  return Error::Ok;
}

}  // namespace weft::et
