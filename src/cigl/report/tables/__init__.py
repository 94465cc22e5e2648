"""Tables of a report, and the sentences that say what was found."""
