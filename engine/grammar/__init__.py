"""Answers of a prescribed form: a grammar over bytes, JSON schemas as such grammars, and which tokens go on with one."""
