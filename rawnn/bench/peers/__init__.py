"""The same work in other systems, each in a process of its own, measured in turns with ours."""
