"""Front doors: the `turnlog` command and, later, HTTP."""
