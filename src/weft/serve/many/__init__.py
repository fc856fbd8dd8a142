"""Several models under one server, loaded when requests ask for them."""

from weft.serve.many.app import create_many_app, make_fleet
from weft.serve.many.catalog import Catalog, find_models
from weft.serve.many.fleet import Fleet, ManyOptions
from weft.serve.many.planned import Recipe
from weft.serve.many.settings import SettingsFile, parse_duration, read_settings

__all__ = ["Catalog", "Fleet", "ManyOptions", "Recipe", "SettingsFile", "create_many_app",
           "find_models", "make_fleet", "parse_duration", "read_settings"]  # fmt: skip
