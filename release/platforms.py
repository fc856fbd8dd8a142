"""The platforms that wheels are made for."""

from __future__ import annotations

from dataclasses import dataclass

from release.errors import ReleaseError

__all__ = ["PLATFORMS", "Platform", "named"]


@dataclass(frozen=True)
class Platform:
    """A platform: `zig` is its name for the compiler, `tag` its name in wheels (PEP 425, 600 and
    656), `system` and `processor` its names in CMake."""

    zig: str
    tag: str
    system: str
    processor: str

    @property
    def name(self) -> str:
        """As `make wheels PLATFORMS=...` says it, such as `manylinux-x86_64`."""
        family = self.tag.split("_")[0]
        return f"{ {'macosx': 'macos', 'win': 'windows'}.get(family, family)}-{self.processor}"

    @property
    def suffix(self) -> str:
        """The file suffix of Python's native modules."""
        return ".pyd" if self.system == "Windows" else ".so"

    def module_suffix(self, python: tuple[int, int]) -> str:
        """The suffix of a module for `python`, the stable ABI from 3.12 on, as that Python looks
        for it."""
        if python >= (3, 12):
            return ".pyd" if self.system == "Windows" else ".abi3.so"
        number = f"{python[0]}{python[1]}"
        if self.system == "Windows":
            return f".cp{number}-{self.tag}.pyd"
        if self.system == "Darwin":
            return f".cpython-{number}-darwin.so"
        libc = "musl" if self.tag.startswith("musllinux") else "gnu"
        return f".cpython-{number}-{self.processor}-linux-{libc}.so"


PLATFORMS = (
    Platform("x86_64-linux-gnu.2.28", "manylinux_2_28_x86_64", "Linux", "x86_64"),
    Platform("aarch64-linux-gnu.2.28", "manylinux_2_28_aarch64", "Linux", "aarch64"),
    Platform("x86_64-linux-musl", "musllinux_1_2_x86_64", "Linux", "x86_64"),
    Platform("aarch64-linux-musl", "musllinux_1_2_aarch64", "Linux", "aarch64"),
    Platform("aarch64-macos.11.0", "macosx_11_0_arm64", "Darwin", "arm64"),
    Platform("x86_64-macos.11.0", "macosx_11_0_x86_64", "Darwin", "x86_64"),
    Platform("x86_64-windows-gnu", "win_amd64", "Windows", "AMD64"),
    Platform("aarch64-windows-gnu", "win_arm64", "Windows", "ARM64"),
)


def named(name: str) -> Platform:
    """The platform of a name; raises ReleaseError, listing all, where there is none."""
    for platform in PLATFORMS:
        if platform.name == name:
            return platform
    known = ", ".join(p.name for p in PLATFORMS)
    raise ReleaseError(f"there is no platform {name!r}; PLATFORMS takes names of {known}")
