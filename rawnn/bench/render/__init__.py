"""Tables, charts and the report of what was measured: all of them read records alone."""
