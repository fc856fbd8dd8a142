#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "quants/interleave.h"
#include "quants/levels.h"
#include "quants/lookup_layout.h"

namespace weft::et {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// The alignment of constants that are used in place: that of tensors in GGUF files.
constexpr uintptr_t kAlignment = 32;

// Objects that delegates of a file share, by the file, a name and a number. A file's NamedDataMap
// lives as long as the methods loaded from it, so its address stands for the file.
template <typename T>
class Shared {
 public:
  using Key = std::tuple<const NamedDataMap*, std::string, int>;

  template <typename Make>
  Result<std::shared_ptr<T>> find(const Key& key, Make make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto entry = known_.find(key); entry != known_.end()) {
      if (std::shared_ptr<T> value = entry->second.lock()) return value;
    }
    for (auto i = known_.begin(); i != known_.end();) {
      i = i->second.expired() ? known_.erase(i) : std::next(i);
    }
    Result<std::shared_ptr<T>> value = make();
    if (value.ok()) known_[key] = value.get();
    return value;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<T>> known_;
};

// Never destroyed, because delegates may outlive the static objects of this library when the
// process ends.
template <typename T>
Shared<T>& shared() {
  static auto* all = new Shared<T>();
  return *all;
}

struct Move {
  const Repack* how;
  const char* src;
  char* dst;
  int64_t row_bytes;
  int64_t panels;
  std::atomic<int64_t> next{0};

  static void job(void* context, int) {
    Move& m = *static_cast<Move*>(context);
    const Repack& r = *m.how;
    for (;;) {
      const int64_t panel = m.next.fetch_add(1, std::memory_order_relaxed);
      if (panel >= m.panels) return;
      if (r.to == Layout::kInterleaved) {
        interleave_panels(r.type, m.src, m.row_bytes, r.row_elements, panel, 1, m.dst);
      } else if (r.to == Layout::kLevels) {
        make_level_panels(r.type, m.src, m.row_bytes, r.row_elements, panel, 1, m.dst);
      } else if (r.to == Layout::kLookup) {
        make_lookup_panels(r.type, m.src, m.row_bytes, r.row_elements, panel, 1, m.dst);
      } else {
        deinterleave_panels(r.type, m.src, r.row_elements, panel, 1, m.dst, m.row_bytes);
      }
    }
  }
};

bool is_one_way(Layout layout) { return layout == Layout::kLookup || layout == Layout::kLevels; }

// The elements that rows have a multiple of in the layout that is wanted; 0 when the type does not
// have it.
int64_t block_of(const Repack& r) {
  if (r.to == Layout::kLookup) return lookup_block(r.type);
  if (r.to == Layout::kLevels) return level_block(r.type);
  const InterleavedFormat* format = interleaved_format(r.type);
  return format == nullptr ? 0 : format->block;
}

// The bytes of the repacked matrices. Panels have as many bytes as rows; the lookup and levels
// layouts may have more, and there is no way back from them.
Result<size_t> repacked_size(const Repack& r, size_t source) {
  const bool interleaves = !is_one_way(r.to) && !is_one_way(r.from);
  const int64_t block = block_of(r);
  const bool from_rows = r.from == Layout::kRows;
  if (block == 0 || from_rows == (r.to == Layout::kRows) || is_one_way(r.from) ||
      r.row_elements % block != 0 ||
      !(interleaves ? has_panels(r.type, r.rows) : r.rows % kPanelRows == 0)) {
    return Error::InvalidProgram;
  }
  int64_t elements = 0;
  if (r.rows <= 0 || r.row_elements <= 0 ||
      __builtin_mul_overflow(r.rows, r.row_elements, &elements) || elements > int64_t{1} << 50) {
    return Error::InvalidProgram;
  }
  const DTypeInfo& info = dtype_info(r.type);
  if (elements / info.block * info.block_size > static_cast<int64_t>(source)) {
    return Error::InvalidProgram;
  }
  if (interleaves) return source;
  const int64_t row = r.to == Layout::kLevels ? level_row_bytes(r.type, r.row_elements)
                                              : lookup_row_bytes(r.type, r.row_elements);
  return std::max(source, static_cast<size_t>(row * r.rows));
}

Error repack(const Repack& r, ThreadPool& pool, Constant& constant) {
  const Result<size_t> size = repacked_size(r, constant.size);
  if (!size.ok()) return size.error();
  if (!constant.own.allocate(size.get(), true)) return Error::MemoryAllocationFailed;
  const DTypeInfo& info = dtype_info(r.type);
  const int64_t row_bytes = r.row_elements / info.block * info.block_size;
  Move move{&r, constant.data, constant.own.data(), row_bytes, r.rows / kPanelRows};
  pool.run(&Move::job, &move, pool.size());
  // The bytes behind the last panel (rows, or the scale of i2_s) stay there.
  const auto end = static_cast<size_t>(row_bytes * move.panels * kPanelRows);
  if (constant.size > end) {
    std::memcpy(constant.own.data() + end, constant.data + end, constant.size - end);
  }
  constant.source.reset();
  constant.data = constant.own.data();
  constant.size = size.get();
  return Error::Ok;
}

Result<std::shared_ptr<Constant>> make_constant(const NamedDataMap* map, const std::string& key,
                                                size_t size, const Repack* how, ThreadPool& pool) {
  if (map == nullptr) return Error::InvalidProgram;
  Result<executorch::runtime::FreeableBuffer> bytes = map->get_data(key);
  if (!bytes.ok()) return bytes.error();
  auto constant = std::make_shared<Constant>();
  constant->source.emplace(std::move(bytes.get()));
  constant->data = static_cast<const char*>(constant->source->data());
  constant->size = constant->source->size();
  if (constant->size < size || (constant->data == nullptr && size > 0)) {
    return Error::InvalidProgram;
  }
  if (how != nullptr) {
    if (const Error e = repack(*how, pool, *constant); e != Error::Ok) return e;
  } else if (reinterpret_cast<uintptr_t>(constant->data) % kAlignment != 0) {
    if (!constant->own.allocate(constant->size, true)) return Error::MemoryAllocationFailed;
    std::memcpy(constant->own.data(), constant->data, constant->size);
    constant->source.reset();
    constant->data = constant->own.data();
  }
  return constant;
}

Result<std::shared_ptr<State>> make_state(const NamedDataMap* map, const std::string& key,
                                          size_t size) {
  auto state = std::make_shared<State>();
  if (!state->pages.allocate(size)) return Error::MemoryAllocationFailed;
  if (key.empty()) return state;
  if (map == nullptr) return Error::InvalidProgram;
  Result<executorch::runtime::FreeableBuffer> first = map->get_data(key);
  if (!first.ok()) return first.error();
  if (first->size() < size) return Error::InvalidProgram;
  if (size > 0) std::memcpy(state->pages.data(), first->data(), size);
  return state;
}

}  // namespace

Pages::~Pages() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
}

bool Pages::allocate(size_t size, bool filled) {
  const size_t slack = filled && size >= kHugePage ? kHugePage : 0;
  size_ = std::max<size_t>(size, 1);
  mapped_size_ = size_ + slack;
  void* start = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return false;
  mapped_ = start;
  data_ = static_cast<char*>(start);
#if defined(MADV_HUGEPAGE)
  if (slack > 0) {
    data_ += (kHugePage - reinterpret_cast<uintptr_t>(data_) % kHugePage) % kHugePage;
    madvise(data_, size_, MADV_HUGEPAGE);  // a refusal does no harm
  }
#endif
  return true;
}

Result<std::shared_ptr<Constant>> find_constant(const NamedDataMap* map, const std::string& key,
                                                size_t size, const Repack* repack,
                                                ThreadPool& pool) {
  const int layout = repack == nullptr ? -1 : static_cast<int>(repack->to);
  Result<std::shared_ptr<Constant>> constant = shared<Constant>().find(
      {map, key, layout}, [&] { return make_constant(map, key, size, repack, pool); });
  // In a damaged file another method may have asked for fewer bytes.
  if (constant.ok() && constant.get()->size < size) return Error::InvalidProgram;
  return constant;
}

Result<std::shared_ptr<State>> find_state(const NamedDataMap* map, const std::string& name,
                                          const std::string& key, size_t size, bool share) {
  if (!share || map == nullptr) return make_state(map, key, size);
  Result<std::shared_ptr<State>> state =
      shared<State>().find({map, name, 0}, [&] { return make_state(map, key, size); });
  if (state.ok() && state.get()->pages.size() < size) return Error::InvalidProgram;
  return state;
}

std::shared_ptr<ThreadPool> shared_pool(int threads) {
  static auto* mutex = new std::mutex();
  static auto* current = new std::weak_ptr<ThreadPool>();
  const std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<ThreadPool> pool = current->lock();
  const int wanted = std::max(threads, usable_cores());
  if (pool == nullptr || pool->size() < wanted) {
    pool = std::make_shared<ThreadPool>(wanted);
    *current = pool;
  }
  return pool;
}

}  // namespace weft::et
