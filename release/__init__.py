"""Wheels for every platform, built on one Linux machine, and what a release needs.

    python -m release wheels [PLATFORM ...] [--check]   # make wheels
    python -m release notes [VERSION]                   # the release notes, from CHANGELOG.md
    python -m release version TAG                       # fails where TAG is not the version

platforms.py   the platforms: how they are compiled for, and their wheel tags
pythons.py     the Pythons of this machine: headers to compile with, interpreters to test with
toolchain.py   zig as a C++ compiler for CMake
build.py       the native module, by CMake
pack.py        a wheel of Python files and a native module
check.py       what a wheel contains and imports: tags, size, symbols
tryout.py      a wheel, installed and run
roots.py       the same in a folder with nothing but Debian's Python, also of another processor
notes.py       versions, tags and release notes

docs/releasing.md describes a release and says what was run where.
"""
