"""The paper, cell by cell: the runs it needs, what was published, and what holds."""
