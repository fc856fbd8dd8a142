// The delegate's own code under the sanitizers: `make sanitize` builds it from source into this
// program, with the runtime of the wheel, which is not instrumented. Models: tests/data/delegate.
//
//   weft_delegate_test FOLDER [ROUNDS]
//
// Whole files are loaded, run and dropped, by one thread and by several; then, ROUNDS times a
// model, files with damage in the delegated program or its constants, which may be errors only.
#include "delegate.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/platform.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::BackendOption;
using executorch::runtime::DataLoader;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;

bool quiet = false;  // damaged files are a line each

struct Range {
  size_t begin = 0;
  size_t size = 0;
};

// A file in memory of its own, so that a read behind its end is seen. Notes where the delegated
// programs and the constants are.
class File final : public DataLoader {
 public:
  explicit File(const std::vector<char>& bytes) : bytes_(bytes) {}

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override {
    if (offset > bytes_.size() || size > bytes_.size() - offset) return Error::InvalidArgument;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (info.segment_type == SegmentInfo::Type::Backend) programs.push_back({offset, size});
    if (info.segment_type == SegmentInfo::Type::Constant) constants.push_back({offset, size});
    return FreeableBuffer(bytes_.data() + offset, size, nullptr);
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* to) const override {
    const auto found = load(offset, size, info);
    if (!found.ok()) return found.error();
    std::memcpy(to, found->data(), size);
    return Error::Ok;
  }
  Result<size_t> size() const override { return bytes_.size(); }

  mutable std::vector<Range> programs;
  mutable std::vector<Range> constants;

 private:
  const std::vector<char> bytes_;
  mutable std::mutex mutex_;
};

struct Model {
  std::string name;
  std::vector<char> bytes;
  std::vector<Range> programs;
  std::vector<Range> constants;
};

using Outputs = std::vector<std::vector<double>>;

// Inputs of a method at its greatest sizes, or with `rows` of the first: small integers, numbers.
std::vector<TensorPtr> make_inputs(Module& module, const std::string& method, int rows = 0) {
  std::vector<TensorPtr> inputs;
  const auto meta = module.method_meta(method);
  if (!meta.ok()) return inputs;
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    const auto info = meta->input_tensor_meta(i);
    if (!info.ok()) return {};
    std::vector<executorch::aten::SizesType> sizes(info->sizes().begin(), info->sizes().end());
    if (rows > 0 && i == 0) sizes[0] = rows;
    inputs.push_back(executorch::extension::full(sizes, 0, info->scalar_type()));
    auto& tensor = *inputs.back();
    Random random(17);
    for (ssize_t k = 0; k < tensor.numel(); ++k) {
      switch (info->scalar_type()) {
        case ScalarType::Float:
          tensor.mutable_data_ptr<float>()[k] = random.normal();
          break;
        case ScalarType::Long:
          tensor.mutable_data_ptr<int64_t>()[k] = k % 8;
          break;
        case ScalarType::Bool:
          tensor.mutable_data_ptr<bool>()[k] = k % 3 == 0;
          break;
        default:
          break;
      }
    }
  }
  return inputs;
}

Error run(Module& module, const std::string& method, const std::vector<TensorPtr>& inputs,
          Outputs* out = nullptr) {
  std::vector<EValue> values;
  for (const TensorPtr& input : inputs) values.emplace_back(*input);
  const auto results = module.execute(method, values);
  if (!results.ok()) return results.error();
  if (out == nullptr) return Error::Ok;
  out->clear();
  for (const EValue& value : results.get()) {
    const auto& tensor = value.toTensor();
    std::vector<double> numbers;
    if (tensor.scalar_type() == ScalarType::Float) {
      const float* data = tensor.const_data_ptr<float>();
      numbers.assign(data, data + tensor.numel());
    }
    out->push_back(numbers);
  }
  return Error::Ok;
}

void check_near(const Outputs& a, const Outputs& b) {
  CHECK(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].size() == b[i].size());
    for (size_t k = 0; k < a[i].size(); ++k) CHECK(std::abs(a[i][k] - b[i][k]) < 1e-4);
  }
}

std::set<std::string> methods_of(Module& module) {
  const auto names = module.method_names();
  if (!names.ok()) return {};
  return {names->begin(), names->end()};
}

Model load_model(const std::filesystem::path& path) {
  Model model{path.stem().string(), {}, {}, {}};
  std::ifstream in(path, std::ios::binary);
  model.bytes.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  auto file = std::make_unique<File>(model.bytes);
  const File& seen = *file;
  Module module(std::move(file));
  for (const std::string& method : methods_of(module)) {
    CHECK(module.load_method(method) == Error::Ok);
  }
  model.programs = seen.programs;
  model.constants = seen.constants;
  CHECK(!model.programs.empty());
  return model;
}

// ---- whole files --------------------------------------------------------------------------------

void runs_and_drops(const Model& model) {
  for (int round = 0; round < 3; ++round) {
    Module module(std::make_unique<File>(model.bytes));
    for (const std::string& method : methods_of(module)) {
      const auto inputs = make_inputs(module, method);
      for (int call = 0; call < 3; ++call) CHECK(run(module, method, inputs) == Error::Ok);
    }
  }
}

void sizes_vary(const Model& model) {
  Module module(std::make_unique<File>(model.bytes));
  for (int rows : {9, 1, 4, 9, 2}) {
    CHECK(run(module, "forward", make_inputs(module, "forward", rows)) == Error::Ok);
  }
  CHECK(run(module, "forward", make_inputs(module, "forward", 10)) != Error::Ok);
  CHECK(run(module, "forward", make_inputs(module, "forward", 3)) == Error::Ok);
}

// Every thread loads the file, or its methods, for itself.
void loads_in_threads(const Model& model, bool one_program) {
  const bool has_state = model.name == "state";
  Module first(std::make_unique<File>(model.bytes));
  CHECK(first.load() == Error::Ok);
  std::map<std::string, Outputs> want;
  const auto methods = methods_of(first);
  for (const auto& method : methods) {
    CHECK(run(first, method, make_inputs(first, method), &want[method]) == Error::Ok);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) {
        auto module = one_program ? std::make_unique<Module>(first.program())
                                  : std::make_unique<Module>(std::make_unique<File>(model.bytes));
        for (const auto& method : methods) {
          Outputs got;
          const auto inputs = make_inputs(*module, method);
          for (int call = 0; call < 3; ++call) {
            CHECK(run(*module, method, inputs, &got) == Error::Ok);
            if (!has_state) check_near(got, want[method]);
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// ---- one delegate -------------------------------------------------------------------------------

// The backend's verbs, as the runtime calls them.
class Direct {
 public:
  explicit Direct(const Model& model, Span<const BackendOption> options = {})
      : file_(std::make_unique<File>(model.bytes)), allocator_(0, nullptr) {
    CHECK(file_.load() == Error::Ok);
    const auto map = file_.program()->get_named_data_map();
    CHECK(map.ok());
    backend_ = executorch::runtime::get_backend_class("WeftBackend");
    CHECK(backend_ != nullptr && backend_->is_available());
    executorch::runtime::BackendInitContext context(&allocator_, nullptr, "forward", map.get(),
                                                    options);
    const Range& range = model.programs[0];
    FreeableBuffer processed(model.bytes.data() + range.begin, range.size, nullptr);
    const Result<DelegateHandle*> made = backend_->init(context, &processed, {});
    error = made.error();
    if (made.ok()) handle_ = made.get();
  }
  ~Direct() {
    if (handle_ != nullptr) backend_->destroy(handle_);
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  const weft::et::Delegate& delegate() const {
    return *static_cast<const weft::et::Delegate*>(handle_);
  }
  Error execute(std::vector<EValue>& arguments) const {
    std::vector<EValue*> pointers;
    for (EValue& a : arguments) pointers.push_back(&a);
    executorch::runtime::BackendExecutionContext context;
    return backend_->execute(context, handle_, {pointers.data(), pointers.size()});
  }

  Error error = Error::Ok;

 private:
  Module file_;
  executorch::runtime::MemoryAllocator allocator_;
  executorch::runtime::BackendInterface* backend_ = nullptr;
  DelegateHandle* handle_ = nullptr;
};

BackendOption option(const char* key, executorch::runtime::OptionValue value) {
  BackendOption made{};
  std::strncpy(made.key, key, sizeof made.key - 1);
  made.value = value;
  return made;
}

void threads_are_chosen_when_loaded(const Model& model) {
  const int cores = weft::usable_cores();
  CHECK(Direct(model).delegate().threads() == cores);
  for (int n : {1, 2, cores + 3}) {
    const BackendOption chosen[] = {option("threads", n)};
    CHECK(Direct(model, chosen).delegate().threads() == n);
  }
  const BackendOption all[] = {option("threads", 0)};
  CHECK(Direct(model, all).delegate().threads() == cores);
  for (int n : {-1, 1025, INT32_MIN, INT32_MAX}) {
    const BackendOption bad[] = {option("threads", n)};
    CHECK(Direct(model, bad).error == Error::InvalidArgument);
  }
  const BackendOption flag[] = {option("threads", true)};
  CHECK(Direct(model, flag).error == Error::InvalidArgument);
  const BackendOption text[] = {
      option("threads", std::array<char, executorch::runtime::kMaxOptionValueLength>{"2"})};
  CHECK(Direct(model, text).error == Error::InvalidArgument);
  const BackendOption other[] = {option("thread", 2)};
  CHECK(Direct(model, other).error == Error::InvalidArgument);
}

void delegates_share_a_pool(const Model& model) {
  const Direct a(model);
  const BackendOption one[] = {option("threads", 1)};
  const Direct b(model, one);
  CHECK(a.delegate().pool() == b.delegate().pool());
}

// The file `types`: x f16, n i64, flags bool; one delegate that several threads call.
void calls_in_threads(const Model& model) {
  const Direct direct(model);
  CHECK(direct.error == Error::Ok);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      using executorch::extension::full;
      for (int call = 0; call < 20; ++call) {
        const int64_t number = 100 * t + call;
        const TensorPtr tensors[] = {
            full({2, 6}, 1.5, ScalarType::Half),      full({2, 6}, number, ScalarType::Long),
            full({2, 6}, call % 2, ScalarType::Bool), full({2, 6}, 0, ScalarType::Float),
            full({2, 6}, 0, ScalarType::Long),        full({2, 6}, 0, ScalarType::Bool)};
        std::vector<EValue> arguments;
        for (const TensorPtr& tensor : tensors) arguments.emplace_back(*tensor);
        CHECK(direct.execute(arguments) == Error::Ok);
        const double want = call % 2 == 1 ? 1.5 : static_cast<double>(number);
        CHECK(std::abs(tensors[3]->const_data_ptr<float>()[11] - want) < 1e-6);
        CHECK(tensors[4]->const_data_ptr<int64_t>()[11] == 2 * number + 1);
        CHECK(tensors[5]->const_data_ptr<bool>()[11] == (number > 2));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void wrong_arguments(const Model& model) {
  using executorch::extension::full;
  const Direct direct(model);
  std::vector<EValue> none;
  CHECK(direct.execute(none) == Error::InvalidProgram);
  const TensorPtr small = full({2, 5}, 0, ScalarType::Half);
  std::vector<EValue> arguments(6, EValue(*small));
  CHECK(direct.execute(arguments) == Error::InvalidArgument);
  arguments.assign(6, EValue(static_cast<int64_t>(3)));
  CHECK(direct.execute(arguments) == Error::InvalidArgument);
}

// ---- damaged files ------------------------------------------------------------------------------

void damage(std::vector<char>& bytes, const Range& range, Random& random) {
  static constexpr int64_t kWords[] = {
      0, 1, 2, 3, 7, 8, 31, 32, 64, 127, 128, 255, 65536, 1LL << 31, 1LL << 40, 1LL << 62, -1, -2};
  const int64_t n = static_cast<int64_t>(range.size);
  const int changes[] = {1, 1, 2, 4, 16};
  for (int i = changes[random.below(5)]; i > 0; --i) {
    const int64_t at = random.below(n);
    char* p = bytes.data() + range.begin + at;
    switch (random.below(4)) {
      case 0:
        *p = static_cast<char>(*p ^ (1 << random.below(8)));
        break;
      case 1:
        *p = static_cast<char>(random.next());
        break;
      case 2: {
        const int64_t width = int64_t{1} << random.below(4);
        const int64_t word = kWords[random.below(std::size(kWords))];
        const int64_t begin = at / width * width;
        std::memcpy(bytes.data() + range.begin + begin, &word,
                    static_cast<size_t>(std::min(width, n - begin)));
        break;
      }
      default: {
        const int64_t from = random.below(n);
        const int64_t count = std::min({random.below(64) + 1, n - at, n - from});
        std::memmove(p, bytes.data() + range.begin + from, static_cast<size_t>(count));
      }
    }
  }
}

void damaged(const Model& model, int rounds) {
  int refused = 0;
  int ran = 0;
  for (int round = 0; round < rounds; ++round) {
    Random random(static_cast<uint32_t>(round) + 1);
    const bool weights = !model.constants.empty() && random.below(4) == 0;
    const auto& ranges = weights ? model.constants : model.programs;
    std::vector<char> bytes = model.bytes;
    damage(bytes, ranges[static_cast<size_t>(random.below(static_cast<int64_t>(ranges.size())))],
           random);
    Module module(std::make_unique<File>(bytes));
    for (const std::string& method : methods_of(module)) {
      if (module.load_method(method) != Error::Ok) {
        ++refused;
        continue;
      }
      const auto inputs = make_inputs(module, method);
      for (int call = 0; call < 2; ++call) ran += run(module, method, inputs) == Error::Ok;
    }
  }
  std::printf("  %s: %d refused, %d ran\n", model.name.c_str(), refused, ran);
  std::fflush(stdout);
  CHECK(rounds < 50 || (refused > 0 && ran > 0));
}

}  // namespace

// In the place of the runtime's own.
extern "C" void et_pal_emit_log_message(et_timestamp_t, et_pal_log_level_t, const char*,
                                        const char*, size_t, const char* message, size_t) {
  if (!quiet) std::fprintf(stderr, "  %s\n", message);
}

int main(int argc, char** argv) {
  CHECK(argc > 1);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 200;
  std::vector<Model> models;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (entry.path().extension() == ".pte") models.push_back(load_model(entry.path()));
  }
  std::sort(models.begin(), models.end(),
            [](const Model& a, const Model& b) { return a.name < b.name; });
  std::printf("%zu models\n", models.size());
  CHECK(!models.empty());
  for (const Model& model : models) {
    std::printf("%s\n", model.name.c_str());
    std::fflush(stdout);
    runs_and_drops(model);
    loads_in_threads(model, false);
    loads_in_threads(model, true);
    if (model.name == "sizes") sizes_vary(model);
    if (model.name != "types") continue;
    threads_are_chosen_when_loaded(model);
    delegates_share_a_pool(model);
    calls_in_threads(model);
    wrong_arguments(model);
  }
  quiet = true;
  for (const Model& model : models) damaged(model, rounds);
  return 0;
}
