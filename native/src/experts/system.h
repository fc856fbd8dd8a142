#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// The calls of the operating system that a store of experts makes. A call that fails leaves its
// cause in errno.
namespace weft {

// A descriptor of a file that is opened for reading at any place, or -1.
int open_for_reading(const std::string& path);
void close_file(int descriptor);
// The number of bytes read from a place on, 0 at the end of the file, or -1. Several threads may
// read at once.
int64_t read_at(int descriptor, char* out, int64_t bytes, int64_t at);

// Addresses that nothing has, not even zeros, or nullptr.
char* reserve_addresses(size_t bytes);
void release_addresses(char* range, size_t bytes);

}  // namespace weft
