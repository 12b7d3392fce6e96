"""What everything uses: storage types, numbers by counter, wording, files."""
