"""What is fastest on this machine: measured, remembered, and looked up again by `best`."""
