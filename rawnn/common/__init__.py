"""What everything uses: storage dtypes, random numbers by counter, wording, files, errors."""
