"""Several models under one server, loaded when requests ask for them.

settings.py   what a TOML file says about models
catalog.py    the models of folders and files, by name
planned.py    the bytes that a model needs, known before it is loaded
fleet.py      the models, and which request has which: leases
loader.py     loads them from a queue, and says which ones give way
place.py      one model of these and its state
freed.py      gives memory back to the system
asking.py     which model a request asks for
dispatch.py   hands each request to the application of its model
endpoints.py  the endpoints about all models
gathered.py   the metrics of all loaded models
app.py        the application
"""

from weft.serve.many.app import create_many_app, make_fleet
from weft.serve.many.catalog import Catalog, find_models
from weft.serve.many.fleet import Fleet, ManyOptions
from weft.serve.many.planned import Recipe
from weft.serve.many.settings import SettingsFile, parse_duration, read_settings

__all__ = [
    "Catalog",
    "Fleet",
    "ManyOptions",
    "Recipe",
    "SettingsFile",
    "create_many_app",
    "find_models",
    "make_fleet",
    "parse_duration",
    "read_settings",
]
