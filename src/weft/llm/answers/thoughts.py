"""Detects the texts around reasoning and around content, by rendering a template with and without
reasoning."""

from __future__ import annotations

from weft.llm.answers.markers import THOUGHTS
from weft.llm.answers.probes import SAID, TAG, THOUGHT, Probe, shared_end, shared_start

__all__ = ["find_content", "find_thought"]


def find_thought(probe: Probe) -> tuple[str, str] | None:
    """The texts around reasoning; None: the model writes none."""
    source = "\n".join(probe.template.sources.values())
    for pair in THOUGHTS:
        if pair[1] in source and any(p.rstrip().endswith(pair[0].strip()) for p in probe.prompts):
            return pair
    text = probe.thought()
    if text is not None:
        before, _, behind = text.partition(THOUGHT)
        known = next((pair for pair in THOUGHTS if before.rstrip().endswith(pair[0].strip())), None)
        if known is not None and known[1] in behind:
            return known
        opening = before.removeprefix(probe.head).strip()
        if opening == before.strip():
            opening = ""
        if not opening:
            tags = TAG.findall(before)
            opening = tags[-1] if tags and before.rstrip().endswith(tags[-1]) else ""
        closing = _closing(probe, behind)
        if opening and closing:
            return opening, closing
    return next((pair for pair in THOUGHTS if pair[1] in source), None)


def _closing(probe: Probe, behind: str) -> str:
    until = behind.partition(SAID)[0]
    content = find_content(probe)[0]
    if SAID in behind and content and until.rstrip().endswith(content.rstrip()):
        until = until.rstrip()[: -len(content.rstrip())]
        if until.strip():
            return until.strip()
    match = TAG.match(behind.lstrip())
    return match[0] if match else ""


def find_content(probe: Probe, thought: tuple[str, str] | None = None) -> tuple[str, str]:
    """The texts that a model writes around content, behind reasoning between the texts `thought`;
    empty where there is none."""
    text = probe.plain()
    if text is None or SAID not in text:
        return "", ""
    before, _, behind = text.partition(SAID)
    for opening, closing in (
        *THOUGHTS,
        *([thought] if thought else []),
    ):  # some templates write empty reasoning
        if closing in before:
            before = before.rpartition(closing)[2]
        before = before.replace(opening, "")
    if before.strip() and all(p.rstrip().endswith(before.rstrip()) for p in probe.prompts):
        before = ""
    called = probe.called(1, SAID) or ""
    if SAID in called:
        close = shared_start(behind, called.partition(SAID)[2]).strip()
    else:
        end = shared_end(behind, called)
        close = behind[: len(behind) - len(end)].strip() if called and end.strip() else ""
    return before.lstrip() if before.strip() else "", close
