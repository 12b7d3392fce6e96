"""Benchmarks: the ladder of optimizations, its statistics, tables, plots and results files."""
