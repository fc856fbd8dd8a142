"""How fast a plan will be: predicted from the speeds of a machine, or as it was measured here."""

from __future__ import annotations

from pathlib import Path

from weft.backends.base import UsesThreads
from weft.backends.cpu.threads import ThreadOptions
from weft.errors import ScheduleError, WeftError
from weft.flags import FLAGS
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.stage_report import one_pass
from weft.llm.tuned import machine_name, measured
from weft.records import dataclass
from weft.schedule.profile import Profile, load_profile

_SHORT = 128
"""The number of cells in use where a prediction is for short texts."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one text."""

    prompt: float | None
    """Speed of prompts; None: not known."""
    answer: float | None
    """Speed of generated tokens with a short text in the cache; None: none are generated, or it is
    not known."""
    full: float | None
    """Speed of generated tokens with a full cache; None: not known."""
    how: str
    """How it is known, such as `predicted for "a desktop"`."""
    missing: str = ""
    """The kind of text that was not measured: `answers` or `prompts`; empty: none."""

    def __str__(self) -> str:
        """A sentence without its subject, such as `about 120 tokens/s for answers ...`."""
        said = []
        if self.answer is not None:
            full = f" ({speed_text(self.full)} with a full context)" if self.full else ""
            said.append(f"{speed_text(self.answer)} tokens/s for answers{full}")
        if self.prompt is not None:
            writes = said or self.missing
            said.append(
                f"{speed_text(self.prompt)} tokens/s for {'prompts' if writes else 'texts'}"
            )
        rest = f"; {self.missing} were not measured" if self.missing else ""
        return f"about {' and '.join(said)}, {self.how}{rest}."


def speed_text(speed: float) -> str:
    """Tokens per second with three digits, such as `0.42`, `17.3` and `2,150`."""
    if speed < 100:
        return f"{speed:.3g}"
    digits = 10 ** max(len(str(int(speed))) - 3, 0)
    return f"{round(speed / digits) * digits:,}"


def kept_profile() -> Path:
    """The file with the speeds that `weft calibrate` has measured on this machine."""
    return Path(FLAGS.cache) / "speeds.toml"


def speed_of(plan: ContextPlan) -> Speed | None:
    """The speed of a plan: predicted by its profile, or as `weft bench` has measured the model
    here, or predicted from what `weft calibrate` has measured here; None: nothing is known."""
    if plan.profile is not None:
        return _predicted(plan, plan.profile, f'predicted for "{plan.profile.name}"')
    known = _measured(plan)
    if known is not None:
        return known
    try:
        profile = load_profile(kept_profile()) if kept_profile().exists() else None
    except WeftError:  # damaged, or not to be read
        return None
    if profile is None or profile.name != machine_name():
        return None
    return _predicted(plan, profile, "predicted from what `weft calibrate` measured here")


def _predicted(plan: ContextPlan, profile: Profile, how: str) -> Speed | None:
    n = plan.options.n_ubatch
    try:
        prompt = n / one_pass(plan, profile, n, n).seconds
        if not plan.model.continues or plan.options.embeddings:
            return Speed(prompt, None, None, how)
        short = 1 / one_pass(plan, profile, 1, min(_SHORT, plan.options.n_ctx)).seconds
        full = 1 / one_pass(plan, profile, 1).seconds
    except ScheduleError:  # a device that the profile does not have
        return None
    return Speed(prompt, short, full if speed_text(full) != speed_text(short) else None, how)


def _measured(plan: ContextPlan) -> Speed | None:
    """The speed that `weft bench` has kept, measured on the cpu with the usual options."""
    usual = [b.name for b in plan.backends] == ["cpu"] and plan.options.types == CacheTypes()
    found = measured(plan.model.file) if usual else None
    if found is None or not found.speeds:
        return None
    cpu = plan.backends[0]
    asked = ThreadOptions(n_threads=found.threads, n_threads_batch=found.threads_batch).resolved()
    if isinstance(cpu, UsesThreads) and (cpu.n_threads, cpu.n_threads_batch) != asked:
        return None  # measured with other numbers of threads
    each = {test[:2]: speed for test, speed in found.speeds.items()}
    prompt, answer = each.get("pp"), each.get("tg") if plan.model.continues else None
    if answer is None and prompt is None:
        return None
    missing = ""
    if plan.model.continues and (answer is None or prompt is None):
        missing = "prompts" if prompt is None else "answers"
    how = f"as `weft bench` measured here on {found.date}"
    return Speed(prompt, answer, None, how, missing)
