"""TGI's own client, unchanged, against a server on loopback."""
