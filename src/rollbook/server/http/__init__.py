"""What every route needs: requests, responses, errors, limits, cursors, lists, OpenAPI, health and the middleware.
Nothing here knows accounts, episodes or the server context; routes pass what is needed."""
