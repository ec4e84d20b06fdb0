"""One engine or client library is one module here and one row in the registry."""
