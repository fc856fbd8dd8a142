// Bindings that read arrays of strings of GGUF files: 8 bytes of length before the bytes of each.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace nb = nanobind;

namespace {

using BytesList = nb::typed<nb::list, nb::bytes>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The strings in the bytes from `at` on, one after the other.
class Strings {
 public:
  Strings(const Bytes& bytes, uint64_t at)
      : data_(bytes.data()), size_(bytes.size()), at_(std::min<uint64_t>(at, size_)) {}

  // Goes to the next string; false if that is not whole, whatever length it claims.
  bool next() {
    if (size_ - at_ < 8) return false;
    uint64_t length;
    std::memcpy(&length, data_ + at_, 8);  // files are little-endian, as all targets are
    if (length > size_ - at_ - 8) return false;
    start_ = at_ + 8;
    at_ = start_ + length;
    return true;
  }

  uint64_t end() const { return at_; }

  nb::bytes text(uint64_t most) const {
    return nb::bytes(data_ + start_, std::min(at_ - start_, most));
  }

 private:
  const uint8_t* data_;
  uint64_t size_;
  uint64_t at_;
  uint64_t start_ = 0;
};

int64_t strings_end(const Bytes& bytes, uint64_t at, uint64_t n) {
  Strings strings(bytes, at);
  for (; n > 0; --n) {
    if (!strings.next()) return -1;
  }
  return static_cast<int64_t>(strings.end());
}

std::pair<BytesList, uint64_t> read_strings(const Bytes& bytes, uint64_t at, uint64_t n,
                                            uint64_t most) {
  Strings strings(bytes, at);
  BytesList texts;
  for (; n > 0; --n) {
    if (!strings.next()) throw nb::value_error("a string is not whole");
    texts.append(strings.text(most));
  }
  return {texts, strings.end()};
}

}  // namespace

void bind_strings(nb::module_& m) {
  m.def("strings_end", &strings_end, nb::arg("bytes"), nb::arg("at"), nb::arg("n"),
        "Where the `n` strings at byte `at` end; -1 if one of them is not whole.");
  m.def("read_strings", &read_strings, nb::arg("bytes"), nb::arg("at"), nb::arg("n"),
        nb::arg("most"),
        "The `n` strings at byte `at`, up to `most` bytes of each, and where they end. Raises "
        "ValueError if one of them is not whole.");
}
