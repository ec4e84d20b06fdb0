"""The shape of the code: layers, sizes, names."""
