"""The page to talk to a model, which `weft serve` shows a browser at `/`: HTML, styles and modules
of plain JavaScript in `static/`, whose README says more.
"""

from weft.serve.page.endpoints import add_page, add_plan

__all__ = ["add_page", "add_plan"]
