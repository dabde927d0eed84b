"""From runs to verdicts: grouping, statistics, comparison, audit."""
