"""One module per page, each with its `routes`."""
