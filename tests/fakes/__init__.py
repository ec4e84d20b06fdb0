"""Small stand-ins for engines, servers and receivers."""
