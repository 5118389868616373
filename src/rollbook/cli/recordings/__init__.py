"""`rollbook import` and `rollbook export`. The command of a format has the options of its importer or exporter."""
