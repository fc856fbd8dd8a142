// WHERE: one of two elements. CONVERT: elements as another type.
#include "kernels/copy/copy_rows.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_where(KernelTable& table);

namespace {

// ---- WHERE (condition, a, b): bits as they are

template <typename T>
void run_of(const Call& call, int64_t begin, int64_t end) {
  const Operands o(call, 3);
  for_operands(o, begin, end, [](char* const* p, const int64_t* steps, int64_t n) {
    constexpr int64_t kSize = sizeof(T);
    T values_a[kPiece], values_b[kPiece];
    int8_t conditions[kPiece];
    load_cast<int8_t>(p[1], steps[1], n, conditions);
    const auto* a = reinterpret_cast<const T*>(p[2]);
    const auto* b = reinterpret_cast<const T*>(p[3]);
    if (steps[2] != kSize) load_cast<T>(p[2], steps[2], n, values_a), a = values_a;
    if (steps[3] != kSize) load_cast<T>(p[3], steps[3], n, values_b), b = values_b;
    if (steps[0] == kSize) {
      auto* out = reinterpret_cast<T*>(p[0]);
      for (int64_t i = 0; i < n; ++i) out[i] = conditions[i] != 0 ? a[i] : b[i];
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const T x = conditions[i] != 0 ? a[i] : b[i];
        std::memcpy(p[0] + i * steps[0], &x, sizeof x);
      }
    }
  });
}

void run_where(const Call& call, int64_t begin, int64_t end, char*) {
  switch (element_size(call.dst.type)) {
    case 1:
      return run_of<uint8_t>(call, begin, end);
    case 2:
      return run_of<uint16_t>(call, begin, end);
    case 4:
      return run_of<uint32_t>(call, begin, end);
    default:
      return run_of<uint64_t>(call, begin, end);
  }
}

const char* check_where(const Call& call) {
  if (call.src[0]->type != DType::kI8) return "the condition must be i8";
  if (!is_element(call.dst.type) || call.src[1]->type != call.dst.type ||
      call.src[2]->type != call.dst.type) {
    return "a, b and the result must have one plain type";
  }
  for (int i = 0; i < 3; ++i) {
    if (!broadcasts_to(*call.src[i], call.dst)) return "sources do not broadcast to the result";
  }
  return nullptr;
}

// ---- CONVERT

template <typename T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

// Truncates as x86 does: a number that does not fit gives the least integer.
int64_t to_whole(double x) {
  constexpr double kTooBig = 9223372036854775808.0;
  return x >= -kTooBig && x < kTooBig ? static_cast<int64_t>(x) : INT64_MIN;
}

// Numbers become 64-bit integers, of which narrower types keep the low bits. Where all fit 32 bits,
// those do.
template <typename S, typename T>
void convert_run(const S* x, int64_t n, T* out) {
  if constexpr (kIsFloat<S> && !kIsFloat<T>) {
    constexpr S kMost = 2147483520;  // the largest float below 2^31
    S misfits = 0;                   // of the type of x, so that the loop becomes vectors
    for (int64_t i = 0; i < n; ++i) {
      misfits = ((x[i] >= -kMost) & (x[i] <= kMost)) ? misfits : S(1);
    }
    if (misfits == 0) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(static_cast<int32_t>(x[i]));
    } else {
      for (int64_t i = 0; i < n; ++i) {
        out[i] = static_cast<T>(to_whole(static_cast<double>(x[i])));
      }
    }
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(x[i]);
  }
}

// Elements of type S in memory as T; `boolean`: whether they are not 0.
template <typename S, typename T>
void convert(const Operands& o, int64_t begin, int64_t end, bool boolean) {
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    S buffer[kPiece];
    T results[kPiece];
    const S* x;
    if constexpr (kIsFloat<S>) {
      x = numbers_at(p[1], o.of[1].type, steps[1], n, buffer);
    } else {
      x = elements_at(p[1], steps[1], n, buffer);
    }
    // results in 16 bits are written from floats
    const bool in_place = steps[0] == static_cast<int64_t>(sizeof(T)) &&
                          element_size(o.of[0].type) == static_cast<int64_t>(sizeof(T));
    T* out = in_place ? reinterpret_cast<T*>(p[0]) : results;
    if (boolean) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(x[i] != S(0));
    } else {
      convert_run<S, T>(x, n, out);
    }
    if (out != results) return;
    if constexpr (kIsFloat<T>) {
      store_numbers(results, n, p[0], o.of[0].type, steps[0]);
    } else {
      store_cast<T>(results, n, p[0], steps[0]);
    }
  });
}

template <typename S>
void run_from(const Call& call, int64_t begin, int64_t end) {
  const Operands o(call, 1);
  const DType to = call.dst.type;
  const bool boolean = call.i(ConvertSlot::kBoolean) != 0;
  if (is_whole(to)) {
    return with_whole_type(to,
                           [&](auto one) { convert<S, decltype(one)>(o, begin, end, boolean); });
  }
  if (to == DType::kF64) return convert<S, double>(o, begin, end, false);
  convert<S, float>(o, begin, end, false);
}

void run_convert(const Call& call, int64_t begin, int64_t end, char*) {
  const DType from = call.src[0]->type;
  if (from == call.dst.type && call.i(ConvertSlot::kBoolean) == 0) {
    const Operands o(call, 1);
    return for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
      move_units(from, p[1], steps[1], p[0], steps[0], n);
    });
  }
  if (is_whole(from)) {
    return with_whole_type(from, [&](auto one) { run_from<decltype(one)>(call, begin, end); });
  }
  if (from == DType::kF64) return run_from<double>(call, begin, end);
  run_from<float>(call, begin, end);
}

const char* check_convert(const Call& call) {
  if (!is_element(call.src[0]->type) || !is_element(call.dst.type)) {
    return "needs plain types: floats or whole numbers";
  }
  if (call.i(ConvertSlot::kBoolean) != 0 && !is_whole(call.dst.type))
    return "a boolean result is of whole numbers";
  return same_shape(call.dst, *call.src[0]) ? nullptr : "result and source differ in shape";
}

}  // namespace

void register_tensor_where(KernelTable& table) {
  table[Op::kWhere] = {.check = check_where,
                       .items = element_items,
                       .run = run_where,
                       .grain = element_grain,
                       .by_rows = true};
  table[Op::kConvert] = {.check = check_convert,
                         .items = element_items,
                         .run = run_convert,
                         .grain = element_grain,
                         .by_rows = true};
}

}  // namespace weft::WEFT_TARGET
