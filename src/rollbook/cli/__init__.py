"""The command line: one file per command group. Rooms are imported inside commands, so that help stays quick."""
