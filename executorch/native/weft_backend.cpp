// The functions of an ExecuTorch backend: init, execute, destroy. No exception leaves them.
#include <executorch/runtime/backend/interface.h>

#include <new>

#include "complain.h"
#include "delegate.h"

namespace {

using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using executorch::runtime::Span;
using weft::et::Delegate;

// Returns work(), or an Error when it throws.
template <typename Work>
auto guarded(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Error::MemoryAllocationFailed;
  } catch (const std::exception& error) {
    weft::et::complain(error.what());
    return Error::Internal;
  }
}

class WeftBackend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec>) const override {
    return guarded([&]() -> Result<DelegateHandle*> {
      Result<std::unique_ptr<Delegate>> delegate = Delegate::create(context, *processed);
      if (!delegate.ok()) return delegate.error();
      processed->Free();
      return static_cast<DelegateHandle*>(delegate.get().release());
    });
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<EValue*> args) const override {
    return guarded([&] { return static_cast<Delegate*>(handle)->execute(context, args); });
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<Delegate*>(handle); }
};

// Registers the backend when the library is loaded.
WeftBackend backend;
[[maybe_unused]] const Error registered =
    executorch::runtime::register_backend({"WeftBackend", &backend});

}  // namespace

// The line of op `number` in the op table that this library was built with; nullptr when there is
// no such op. The Python package compares the lines with weft.graph.op_table.
extern "C" __attribute__((visibility("default"))) const char* weft_op_line(int number) {
  const bool exists = number >= 0 && number < static_cast<int>(weft::Op::kCount);
  return exists ? weft::kOpInfo[number].description : nullptr;
}
