"""The page to talk to a model, which `weft serve` shows a browser at `/`: HTML, styles and modules
of plain JavaScript in `static/`, whose README says more.
"""
