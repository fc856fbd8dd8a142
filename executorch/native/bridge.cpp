#include "bridge.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace weft::et {

namespace {

using executorch::aten::ScalarType;
using Half = executorch::aten::Half;
using BFloat16 = executorch::aten::BFloat16;

// Calls f(T()), where T is the C++ type of the element.
template <typename F>
void with_type(Element element, F f) {
  switch (element) {
    case Element::kF32:
      return f(float());
    case Element::kF16:
      return f(Half());
    case Element::kBF16:
      return f(BFloat16());
    case Element::kF64:
      return f(double());
    case Element::kI8:
      return f(int8_t());
    case Element::kI16:
      return f(int16_t());
    case Element::kI32:
      return f(int32_t());
    case Element::kI64:
      return f(int64_t());
    case Element::kU8:
      return f(uint8_t());
    case Element::kBool:
      return f(bool());
    case Element::kNone:
      return;
  }
}

template <typename T>
constexpr bool kIsFloat = !std::is_integral_v<T>;

template <typename To, typename From>
To convert(From v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else if constexpr (std::is_same_v<To, bool>) {
    if constexpr (kIsFloat<From>) return static_cast<double>(v) != 0;
    return v != From(0);
  } else if constexpr (kIsFloat<To>) {
    if constexpr (std::is_same_v<To, double>) return static_cast<double>(v);
    return static_cast<To>(static_cast<float>(v));
  } else {
    // To an integer: a value that does not fit becomes the nearest one that does.
    using Limits = std::numeric_limits<To>;
    if constexpr (kIsFloat<From>) {
      const double d = static_cast<double>(v);
      if (std::isnan(d)) return 0;
      if (d <= static_cast<double>(Limits::min())) return Limits::min();
      if (d >= static_cast<double>(Limits::max())) return Limits::max();
      return static_cast<To>(d);
    } else {
      const auto i = static_cast<int64_t>(v);
      if (i < static_cast<int64_t>(Limits::min())) return Limits::min();
      if (i > static_cast<int64_t>(Limits::max())) return Limits::max();
      return static_cast<To>(i);
    }
  }
}

// Goes through the elements of a view in order.
class Cursor {
 public:
  explicit Cursor(const View& view) : view_(view), at_(view.data) {}
  char* at() const { return at_; }
  void next() {
    for (int d = view_.n - 1; d >= 0; --d) {
      at_ += view_.strides[d];
      if (++index_[d] < view_.sizes[d]) return;
      at_ -= view_.strides[d] * view_.sizes[d];
      index_[d] = 0;
    }
  }

 private:
  const View& view_;
  char* at_;
  int64_t index_[View::kMaxDims] = {};
};

template <typename From, typename To>
void copy_as(const View& from, const View& to, int64_t count) {
  Cursor source(from);
  Cursor target(to);
  for (int64_t i = 0; i < count; ++i) {
    From v;
    std::memcpy(&v, source.at(), sizeof v);
    const To w = convert<To>(v);
    std::memcpy(target.at(), &w, sizeof w);
    source.next();
    target.next();
  }
}

}  // namespace

Element element_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return Element::kF32;
    case ScalarType::Half:
      return Element::kF16;
    case ScalarType::BFloat16:
      return Element::kBF16;
    case ScalarType::Double:
      return Element::kF64;
    case ScalarType::Char:
      return Element::kI8;
    case ScalarType::Short:
      return Element::kI16;
    case ScalarType::Int:
      return Element::kI32;
    case ScalarType::Long:
      return Element::kI64;
    case ScalarType::Byte:
      return Element::kU8;
    case ScalarType::Bool:
      return Element::kBool;
    default:
      return Element::kNone;
  }
}

Element element_of(DType type) {
  switch (type) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kF64:
      return Element::kF64;
    case DType::kI8:
      return Element::kI8;
    case DType::kI16:
      return Element::kI16;
    case DType::kI32:
      return Element::kI32;
    case DType::kI64:
      return Element::kI64;
    default:
      return Element::kNone;
  }
}

int64_t bytes_of(Element element) {
  int64_t bytes = 0;
  with_type(element, [&](auto v) { bytes = sizeof v; });
  return bytes;
}

int64_t View::count() const {
  int64_t count = 1;
  for (int d = 0; d < n; ++d) count *= sizes[d];
  return count;
}

bool View::is_dense() const {
  int64_t stride = bytes_of(element);
  for (int d = n - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[d] != stride) return false;
    stride *= sizes[d];
  }
  return true;
}

View view_of(const executorch::aten::Tensor& tensor) {
  View view;
  view.data = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
  view.element = element_of(tensor.scalar_type());
  view.n = static_cast<int>(tensor.dim());
  const int64_t bytes = bytes_of(view.element);
  for (int d = 0; d < view.n; ++d) {
    const auto at = static_cast<size_t>(d);
    view.sizes[d] = tensor.sizes()[at];
    view.strides[d] = tensor.strides()[at] * bytes;
  }
  return view;
}

View view_of(const Tensor& tensor) {
  View view;
  view.data = tensor.data;
  view.element = element_of(tensor.type);
  view.n = 4;
  for (int d = 0; d < 4; ++d) {
    view.sizes[d] = tensor.ne[3 - d];
    view.strides[d] = tensor.nb[3 - d];
  }
  return view;
}

void copy(const View& from, const View& to) {
  const int64_t count = from.count();
  if (count == 0) return;
  if (from.element == to.element && from.is_dense() && to.is_dense()) {
    std::memmove(to.data, from.data, static_cast<size_t>(count * bytes_of(from.element)));
    return;
  }
  with_type(from.element, [&](auto source) {
    with_type(to.element,
              [&](auto target) { copy_as<decltype(source), decltype(target)>(from, to, count); });
  });
}

}  // namespace weft::et
