"""Where views land. I/O only, no business rules."""
