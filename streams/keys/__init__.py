"""What readers of `turnlog.keys` are made of: rows, floors and the local copy, and their check."""
