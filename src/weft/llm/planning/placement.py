"""`Placement`: the values of the options that decide devices and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from weft.backends.base import Backend
from weft.backends.registry import device_name
from weft.errors import ScheduleError
from weft.flags import FLAGS
from weft.llm.planning.options import PlanArguments
from weft.llm.planning.saved_plan import SavedPlan
from weft.options import require_choice
from weft.records import dataclass
from weft.schedule import Policy, Profile, load_profile
from weft.schedule.offload import (
    OffloadRule,
    OpOffload,
    OpOffloadLike,
    op_offload_for,
    read_op_offload,
)


@dataclass(frozen=True, slots=True)
class Placement:
    """The values of the options that decide devices and memory; see `PLAN_OPTIONS`."""

    n_gpu_layers: int | None = None
    place: Mapping[str, str] = field(default_factory=dict)
    saved: SavedPlan | None = None
    fit: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    """The bytes that the plan may use of each device's memory, by device name."""
    policy: Policy = "ggml"
    profile: Profile | None = None
    offload_kv: bool = True
    """True if the cache of a layer is on the device of the layer, False if in host memory."""
    beside: Sequence[Any] = ()
    """The plans of other contexts whose memory counts, too."""
    op_offload: OpOffload = OpOffload()
    """Which devices take ops whose weights are in host memory."""

    def __post_init__(self) -> None:
        others = self.fit or self.n_gpu_layers is not None or self.place or not self.offload_kv
        if self.saved is not None and (others or self.policy != "ggml"):
            raise ScheduleError(
                "a plan file says where everything is; leave out `n_gpu_layers`, `offload_kv`, "
                "`place`, `fit`, `policy`"
            )
        if self.fit and self.n_gpu_layers is not None:
            raise ScheduleError(
                "chooses the number of layers; leave out `n_gpu_layers`", argument="fit"
            )
        if self.policy == "cost" and self.profile is None:
            raise ScheduleError(
                "'cost' needs a machine profile; measure one with `weft calibrate`",
                argument="policy",
            )
        require_choice("policy", self.policy, ("ggml", "cost"), ScheduleError)

    def on(self, backends: Sequence[Backend], op_offload: OpOffloadLike) -> Placement:
        """This placement for `backends`: devices of `place` and `memory` have the names of the
        backends, and `op_offload`, None if the caller left it out, has become rules.

        Raises ScheduleError for rules that are none, or beside a plan file."""
        names = {backend.name for backend in backends}

        def own(name: str) -> str:
            return name if name in names else device_name(name)

        return replace(
            self,
            place={glob: own(name) for glob, name in self.place.items()},
            memory={own(name): size for name, size in self.memory.items()},
            op_offload=self._rules(backends, op_offload),
        )

    def _rules(self, backends: Sequence[Backend], op_offload: OpOffloadLike) -> OpOffload:
        if self.saved is not None:
            if op_offload is not None:
                raise ScheduleError("a plan file says where everything is; leave out `op_offload`")
            return read_op_offload(self.saved.op_offload)
        if op_offload is not None and op_offload is not True:
            return op_offload_for(backends, op_offload)
        if FLAGS.op_offload_min_batch:
            return read_op_offload(FLAGS.op_offload_min_batch)
        measured = [] if self.profile is None else [self.profile.device(b.name) for b in backends]
        return OpOffload(
            tuple(
                OffloadRule("*", device.name, max(device.offload_from, 0) or False)
                for device in measured
                if device is not None and device.offload_from is not None
            )
        )


def read_placement(arguments: PlanArguments, saved: SavedPlan | None) -> Placement:
    """The placement that a caller asks for, before its devices are known; see `Placement.on`.

    Raises ScheduleError for options that contradict each other, and FormatError for a profile that
    cannot be read."""
    profile = arguments.get("profile")
    if profile is not None and not isinstance(profile, Profile):
        profile = load_profile(profile)
    return Placement(
        arguments.get("n_gpu_layers"),
        arguments.get("place") or {},
        saved,
        arguments.get("fit", False),
        arguments.get("memory") or {},
        arguments.get("policy", "ggml"),
        profile,
        arguments.get("offload_kv", True),
        arguments.get("beside", ()),
    )
