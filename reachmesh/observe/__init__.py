"""What happened here: records of calls, rates and percentiles. Sees values only; asks nobody, sends nothing, reads no clock."""
