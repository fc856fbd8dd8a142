"""The commands of a release: wheels, notes, sbom, version."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from release.build import SOURCES, build
from release.check import check
from release.errors import ReleaseError
from release.native import try_native
from release.notes import check_tag, notes, versions
from release.pack import pack, python_files, tags
from release.platforms import PLATFORMS, Platform, named
from release.sbom import components, inside, sbom
from release.tryout import try_out

PYTHONS = ((3, 11), (3, 12))
CUBINS = SOURCES / "src/weft/backends/cuda/cubins"


def wheels(
    platforms: Sequence[Platform], out: Path, kernels: str | None = None, tried: bool = True
) -> None:
    """Builds and checks the wheels of some platforms, a line of facts for each. Goes on where one
    fails; raises ReleaseError at the end."""
    folder = SOURCES / "build/wheels"
    for path in (folder, out):
        path.mkdir(parents=True, exist_ok=True)
    if not CUBINS.is_dir():
        print("wheels without kernels for NVIDIA's GPUs; `python -m release.cubins` compiles them")
    plain = python_files(SOURCES, folder)
    metadata = inside(SOURCES)
    failed = []
    for platform in platforms:
        try:
            built = build(platform, folder, kernels)
            for python in PYTHONS:
                start = time.monotonic()
                module = built.module(python)
                name = f"weft/_native{platform.module_suffix(python)}"
                wheel = pack(
                    plain, {name: module.read_bytes()}, tags(platform, python), out, metadata
                )
                took = time.monotonic() - start
                facts = "; ".join(check(wheel, platform))
                print(f"{wheel.name}: built in {took:.0f} s; {facts}", flush=True)
                for seen in try_out(wheel, platform, folder) if tried else ():
                    print(f"  {seen}", flush=True)
            for seen in try_native(built) if tried and kernels != "none" else ():
                print(f"  {seen}", flush=True)
        except ReleaseError as e:
            print(f"{platform.name}: {e}", file=sys.stderr, flush=True)
            failed.append(platform.name)
    if failed:
        raise ReleaseError(f"{', '.join(failed)}: not all wheels are good, as said above")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("wheels", help="build wheels for other platforms here")
    names = ", ".join(p.name for p in PLATFORMS)
    one.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"default: all of {names}")
    one.add_argument("--out", type=Path, default=SOURCES / "dist")
    one.add_argument("--kernels", help="WEFT_TARGETS, or none, for a quick look; default: all")
    one.add_argument("--no-try", action="store_true", help="build and check, run nothing")
    one = commands.add_parser("notes", help="print the section of a version of CHANGELOG.md")
    one.add_argument("version", nargs="?", help="default: the version of pyproject.toml")
    one.add_argument("--draft", action="store_true", help="also where it is unreleased")
    commands.add_parser("sbom", help="print what a wheel has of others, as CycloneDX")
    one = commands.add_parser("version", help="fail where a tag is not that of pyproject.toml")
    one.add_argument("tag")
    options = parser.parse_args()
    try:
        if options.command == "wheels":
            chosen = [named(name) for name in options.platforms] or list(PLATFORMS)
            wheels(chosen, options.out, options.kernels, not options.no_try)
        elif options.command == "notes":
            text = (SOURCES / "CHANGELOG.md").read_text("utf-8")
            print(notes(text, options.version or versions(SOURCES)["weft"], options.draft), end="")
        elif options.command == "sbom":
            print(sbom(versions(SOURCES)["weft"], components(SOURCES)))
        else:
            print(check_tag(options.tag, SOURCES))
    except ReleaseError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
