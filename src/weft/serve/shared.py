"""What all requests of a server share, whatever the model: keys, counts, traces, files."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.serve.batches.runner import BatchRunner
from weft.serve.batches.store import FileStore
from weft.serve.http_metrics import HttpMetrics
from weft.serve.options import ServeOptions
from weft.serve.responses.kept import KeptResponses
from weft.serve.traces import Traces
from weft.serve.users import Users

__all__ = ["Shared"]


@dataclass(slots=True)
class Shared:
    """The parts of a server that its applications share."""

    users: Users | None = None
    """None: everybody may use the server."""
    http: HttpMetrics = field(default_factory=HttpMetrics)
    traces: Traces | None = None
    batches: BatchRunner | None = None
    """None: the server keeps no files."""
    responses: KeptResponses = field(default_factory=KeptResponses)
    """Responses outlive the models that wrote them."""

    @staticmethod
    def of(options: ServeOptions) -> Shared:
        """Raises FormatError for files that cannot be used, and WeftError if an extra is
        missing."""
        traces = Traces() if options.otel else None
        users = Users(options) if options.needs_key else None
        batches = None
        if options.files_dir is not None:
            store = FileStore(options.files_dir)
            batches = BatchRunner(store, users, most_bytes=options.files_dir_size)
        return Shared(users=users, traces=traces, batches=batches)

    def reload(self) -> None:
        """Reads the keys again. Raises FormatError if that fails; they are as before then."""
        if self.users is not None:
            self.users.ring.reload()

    def close(self) -> None:
        """Writes usage, sends traces, and lets others use the folder of files."""
        if self.users is not None:
            self.users.close()
        if self.traces is not None:
            self.traces.close()
        if self.batches is not None:
            self.batches.store.close()
