#include "experts/system.h"

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace weft {

#if defined(_WIN32)

int open_for_reading(const std::string& path) {
  const std::u8string name(path.begin(), path.end());
  return _wopen(std::filesystem::path(name).c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT);
}

void close_file(int descriptor) { _close(descriptor); }

int64_t read_at(int descriptor, char* out, int64_t bytes, int64_t at) {
  OVERLAPPED place = {};
  place.Offset = static_cast<DWORD>(at);
  place.OffsetHigh = static_cast<DWORD>(at >> 32);
  DWORD n = 0;
  const auto most = static_cast<DWORD>(std::min<int64_t>(bytes, int64_t{1} << 30));
  auto* const file = reinterpret_cast<HANDLE>(_get_osfhandle(descriptor));
  if (ReadFile(file, out, most, &n, &place) != 0) return n;
  if (GetLastError() == ERROR_HANDLE_EOF) return 0;
  errno = EIO;
  return -1;
}

char* reserve_addresses(size_t bytes) {
  return static_cast<char*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE, PAGE_NOACCESS));
}

void release_addresses(char* range, size_t) { VirtualFree(range, 0, MEM_RELEASE); }

#else

int open_for_reading(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
#if defined(POSIX_FADV_RANDOM)
  if (descriptor >= 0) posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);  // one expert, another
#endif
  return descriptor;
}

void close_file(int descriptor) { close(descriptor); }

int64_t read_at(int descriptor, char* out, int64_t bytes, int64_t at) {
  return pread(descriptor, out, static_cast<size_t>(bytes), at);
}

char* reserve_addresses(size_t bytes) {
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return range == MAP_FAILED ? nullptr : static_cast<char*>(range);
}

void release_addresses(char* range, size_t bytes) { munmap(range, bytes); }

#endif

}  // namespace weft
