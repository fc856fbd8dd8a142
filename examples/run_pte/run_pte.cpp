// Runs a method of a .pte file, without Python.
//
// `run_pte --help` says how it is called. Parts of the model that were lowered to weft run in
// libweft_executorch, which is linked in: linking it is all that the backend needs.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

constexpr const char* kHelp =
    R"(usage: run_pte MODEL.pte [OPTION VALUE]...

Calls a method of a .pte file once, and prints the shape and the first elements of each output.

  --method NAME    the method; default: forward
  --input FILE     the raw elements of an input; given once for each input, in their order. Inputs
                   without a file are ones.
  --shape 2,3,8,8  the shape of an input whose sizes may vary; given once for each input, in their
                   order. Inputs without one have their largest sizes.
  --output PREFIX  writes the raw elements of output i to PREFIX.i
  --repeat N       also prints the median time of N more calls
  --generate N     of a file that `weft export` made of a language model: prints N tokens that
                   follow those of the inputs (tokens, positions), each time the most likely one
  --help           prints this
)";

using Sizes = std::vector<executorch::aten::SizesType>;

struct Arguments {
  std::string model;
  std::string method = "forward";
  std::vector<std::string> inputs;
  std::vector<Sizes> shapes;
  std::string output;
  int repeat = 0;
  int generate = 0;
};

// The numbers in a text such as "2,3,8,8"; empty for another text.
Sizes parse_shape(const std::string& text) {
  Sizes sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    const auto [behind, error] = std::from_chars(at, end, sizes.emplace_back());
    if (error != std::errc()) return {};
    if (behind == end) return sizes;
    if (*behind != ',') return {};
    at = behind + 1;
  }
  return {};
}

bool parse(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option.rfind("--", 0) != 0) {
      out.model = option;
      continue;
    }
    if (++i == argc) return false;
    if (option == "--method") {
      out.method = argv[i];
    } else if (option == "--input") {
      out.inputs.push_back(argv[i]);
    } else if (option == "--shape") {
      out.shapes.push_back(parse_shape(argv[i]));
      if (out.shapes.back().empty()) return false;
    } else if (option == "--output") {
      out.output = argv[i];
    } else if (option == "--repeat") {
      out.repeat = std::atoi(argv[i]);
    } else if (option == "--generate") {
      out.generate = std::atoi(argv[i]);
    } else {
      return false;
    }
  }
  return !out.model.empty();
}

int fail(const char* what, Error error) {
  std::fprintf(stderr, "%s: error 0x%x\n", what, static_cast<unsigned>(error));
  return 1;
}

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const auto n : sizes) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}

// Ones, or the elements in a file, of the given or the largest sizes; nullptr where the method does
// not take the sizes, or the file has others.
TensorPtr make_input(const executorch::runtime::TensorInfo& info, const std::string* file,
                     const Sizes* shape) {
  const Sizes largest(info.sizes().begin(), info.sizes().end());
  const Sizes& sizes = shape == nullptr ? largest : *shape;
  const auto fits = [](auto n, auto most) { return 0 <= n && n <= most; };
  if (!std::equal(sizes.begin(), sizes.end(), largest.begin(), largest.end(), fits)) {
    std::fprintf(stderr, "--shape %s is none of this input: it takes at most %s\n",
                 text_of(sizes).c_str(), text_of(largest).c_str());
    return nullptr;
  }
  TensorPtr tensor = executorch::extension::full(sizes, 1, info.scalar_type());
  if (file == nullptr) return tensor;
  std::ifstream in(*file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (bytes.size() != tensor->nbytes()) {
    std::fprintf(stderr, "%s has %zu bytes, an input of shape %s %zu; --shape gives another\n",
                 file->c_str(), bytes.size(), text_of(sizes).c_str(), tensor->nbytes());
    return nullptr;
  }
  std::memcpy(tensor->mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void print(size_t number, const EValue& value) {
  if (!value.isTensor()) {
    std::printf("output %zu: not a tensor\n", number);
    return;
  }
  const auto& tensor = value.toTensor();
  std::printf("output %zu: [", number);
  for (ssize_t d = 0; d < tensor.dim(); ++d) {
    std::printf("%s%d", d ? ", " : "", static_cast<int>(tensor.size(d)));
  }
  std::printf("]");
  for (ssize_t i = 0; i < std::min<ssize_t>(8, tensor.numel()); ++i) {
    if (tensor.scalar_type() == ScalarType::Float) {
      std::printf(" %g", static_cast<double>(tensor.const_data_ptr<float>()[i]));
    } else if (tensor.scalar_type() == ScalarType::Long) {
      std::printf(" %lld", static_cast<long long>(tensor.const_data_ptr<int64_t>()[i]));
    }
  }
  std::printf("\n");
}

void write(const std::string& path, const EValue& value) {
  if (!value.isTensor()) return;
  const auto& tensor = value.toTensor();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(tensor.const_data_ptr()),
             static_cast<std::streamsize>(tensor.nbytes()));
}

double median_ms(Module& module, const Arguments& args, const std::vector<EValue>& inputs) {
  std::vector<double> times;
  for (int i = 0; i < args.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (!module.execute(args.method, inputs).ok()) return -1;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + args.repeat / 2, times.end());
  return times[static_cast<size_t>(args.repeat) / 2];
}

// The number of the largest element.
int64_t most_likely(const executorch::aten::Tensor& logits) {
  const float* first = logits.const_data_ptr<float>();
  return std::max_element(first, first + logits.numel()) - first;
}

// Prints tokens, one call for each; `logits` is the result of the call so far. Whether all went
// well.
bool generate(Module& module, const Arguments& args, const std::vector<TensorPtr>& inputs,
              EValue logits) {
  if (inputs.size() != 2 || inputs[1]->scalar_type() != ScalarType::Long || !logits.isTensor() ||
      logits.toTensor().scalar_type() != ScalarType::Float) {
    std::fprintf(stderr,
                 "--generate is for a method forward(tokens, positions) of `weft export`\n");
    return false;
  }
  int64_t position = inputs[1]->const_data_ptr<int64_t>()[inputs[1]->numel() - 1];
  std::printf("tokens:");
  for (int i = 0; i < args.generate; ++i) {
    const int64_t token = most_likely(logits.toTensor());
    std::printf(" %lld", static_cast<long long>(token));
    const auto next = executorch::extension::make_tensor_ptr<int64_t>({1, 1}, {token});
    const auto at = executorch::extension::make_tensor_ptr<int64_t>({1}, {++position});
    const auto outputs = module.execute(args.method, {EValue(*next), EValue(*at)});
    if (!outputs.ok()) return fail("the method failed", outputs.error()) == 0;
    logits = outputs->at(0);
  }
  std::printf("\n");
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments args;
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!parse(argc, argv, args)) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  // mapped, so that weights are used where the file has them
  Module module(args.model, Module::LoadMode::Mmap);
  const auto meta = module.method_meta(args.method);
  if (!meta.ok()) return fail("the method cannot be read", meta.error());
  std::vector<TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    const auto info = meta->input_tensor_meta(i);
    if (!info.ok()) return fail("an input is no tensor", info.error());
    tensors.push_back(make_input(*info, i < args.inputs.size() ? &args.inputs[i] : nullptr,
                                 i < args.shapes.size() ? &args.shapes[i] : nullptr));
    if (tensors.back() == nullptr) return 1;
    inputs.emplace_back(*tensors.back());
  }
  if (const Error e = module.load_method(args.method); e != Error::Ok) {
    return fail("the method cannot be loaded", e);
  }
  const auto outputs = module.execute(args.method, inputs);
  if (!outputs.ok()) return fail("the method failed", outputs.error());
  for (size_t i = 0; i < outputs->size(); ++i) {
    print(i, outputs->at(i));
    if (!args.output.empty()) write(args.output + "." + std::to_string(i), outputs->at(i));
  }
  if (args.generate > 0 && !generate(module, args, tensors, outputs->at(0))) return 1;
  if (args.repeat > 0) std::printf("median %.3f ms\n", median_ms(module, args, inputs));
  return 0;
}
