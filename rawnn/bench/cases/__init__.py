"""What `rawnn bench` measures, a module a case."""
