"""A client of the HTTP API: finds its server, says what was refused, repeats only what is safe to repeat."""
