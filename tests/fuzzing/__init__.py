"""Fuzz targets of the Python parsers, for atheris; ``make fuzz`` runs them."""
