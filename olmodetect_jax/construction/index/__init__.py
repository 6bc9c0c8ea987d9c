"""Indices of n-grams behind one interface: built in, infini-gram, and a remote one."""
