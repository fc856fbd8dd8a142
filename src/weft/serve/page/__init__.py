"""The page to talk to a model, which `weft serve` shows a browser at `/`.

files.py   the files of the page, packed, with their types
routes.py  the paths: `/` for browsers, `/page/...`, `/plan`
plan.py    the model's plan as a page, with its policy
static/    the page itself: HTML, styles and modules of plain JavaScript (its README says more)
"""

from weft.serve.page.endpoints import add_page, add_plan

__all__ = ["add_page", "add_plan"]
