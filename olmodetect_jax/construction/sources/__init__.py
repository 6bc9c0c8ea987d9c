"""Sources of candidates: one file a domain, from the rows of its real format to candidates."""
