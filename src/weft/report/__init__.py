"""The report: a plan as one HTML file that works without a network.

    from weft.report import report_html
    Path("report.html").write_text(report_html(plan))   # a ContextPlan, Context, LLM or program

planned.py     a plan as plain data: devices, memory, and a table of tensors for each graph
layers.py      which rows of a table are layers, and which layers repeat
programs.py    a program of `weft.compile` or `weft.from_torch`
compare.py     two plans side by side
timeline.py    a profile: slices of work, and the share of the roof of each step
cache.py       the updates of a watched cache
tables.py      the table of tensors of one graph: places, lifetimes, causes, sources
formulas.py    symbolic sizes as data that the page evaluates
variants.py    what the page needs to show other contexts, ubatches, sequences and cache types
html.py        puts data and the files of `page/` into one HTML file, or a frame for notebooks
page/          the page: plain JavaScript without a build step; see below

`report_html` takes an object that has a plan, or data (a mapping with a `kind`), so that others
can make pages of data of their own with the same views: two plans (`"kind": "diff"`), a choice of
types (`"fit"`, of `weft.llm.fitting.plan_file.fit_data`), a program (`"program"`), what an exporter
gave to weft (`"partition"`, of `weft_executorch.partition`), a plan with a run that was profiled
(`"plan"` with `profile`, of `timeline_data`) or whose cache was watched (`cache`, of `cache_data`).

**How the page works.** `html.py` joins the scripts of `page/core/` and then those of `page/views/`,
each in the order of their names, into one script. A view is a file of `page/views/` that calls

    report.view({
      id: "memory",                    // of the tab, and in the address after #
      title: "Memory",                 // of the tab
      order: 20,                       // tabs stand by this number
      needs: (data) => data.kind === "plan",
      render(root, data, state) {...}, // once, when the tab is first opened, into an empty root
    });

`data` is what Python gave; `report.regime(data, state)` is the graph that is shown, whose `tensors`
are objects (see `page/core/20-data.js`). `state` is a store: `state.get(key)`, `state.set({key:
value})`, `state.on(keys, function)`; keys that all views share are

    tensor    name of the selected tensor or null; names are unique within a graph
    regime    number of the graph that is shown, among data.regimes
    layout    places and bytes at the sliders' position; see `page/core/50-layout.js`

Elements are made with `report.el(tag, attributes, ...children)`, which sets text and never HTML:
names of tensors come from files of strangers. Colours are the variables of `page/style.css`.
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.report.cache import cache_data
    from weft.report.compare import diff_data
    from weft.report.html import frame_html, page_html, report_html
    from weft.report.planned import plan_data
    from weft.report.programs import graph_data, program_data
    from weft.report.tables import regime_data
    from weft.report.timeline import timeline_data

__all__ = [
    "cache_data",
    "diff_data",
    "frame_html",
    "graph_data",
    "page_html",
    "plan_data",
    "program_data",
    "regime_data",
    "report_html",
    "timeline_data",
]

__getattr__, __dir__ = imported_when_used(
    __name__,
    {
        "weft.report.cache": ("cache_data",),
        "weft.report.compare": ("diff_data",),
        "weft.report.html": ("frame_html", "page_html", "report_html"),
        "weft.report.planned": ("plan_data",),
        "weft.report.programs": ("graph_data", "program_data"),
        "weft.report.tables": ("regime_data",),
        "weft.report.timeline": ("timeline_data",),
    },
)
