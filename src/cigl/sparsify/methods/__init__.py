"""Methods: their catalogue, options, schedules, distributions, random mask, rounds and averages."""
