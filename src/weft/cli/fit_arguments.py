"""What was typed for `weft quantize --fit`, without the modules that it needs."""

from __future__ import annotations

from pathlib import Path

from weft.cli.command import usage_error
from weft.records import dataclass

__all__ = ["FitArguments"]


@dataclass(frozen=True, slots=True)
class FitArguments:
    """The values of the options, as they were typed."""

    memory: str | None
    file: str | None
    speed: float | None
    n_ctx: int | None
    speeds: Path | None
    text: Path | None
    tokens: int
    manner: str | None
    types: str | None
    type_k: str | None
    type_v: str | None
    html: Path | None
    as_json: bool

    @property
    def is_asked_for(self) -> bool:
        """Whether there is a budget to choose types for."""
        return self.memory is not None or self.file is not None or self.speed is not None

    def refuse_others(self) -> None:
        """Raises a usage error for options that mean nothing without a budget."""
        given = self._others()
        if given:
            raise usage_error(
                f"{given[0]} goes with --fit SIZE, --fit-file SIZE or --speed N; give one, too"
            )

    def refuse_with_plan(self) -> None:
        """Raises a usage error for options that mean nothing with a plan file."""
        limits = {"--fit": self.memory, "--fit-file": self.file, "--speed": self.speed}
        given = [flag for flag, value in limits.items() if value is not None] + self._others()
        if given:
            raise usage_error(f"--fit-plan has the types already; leave out {given[0]}")

    def _others(self) -> list[str]:
        values = {
            "--file": self.text, "--probe": self.manner, "--fit-types": self.types,
            "-ctk": self.type_k, "-ctv": self.type_v, "--html": self.html,
            "--json": self.as_json or None,
        }  # fmt: skip
        return [flag for flag, value in values.items() if value is not None]
