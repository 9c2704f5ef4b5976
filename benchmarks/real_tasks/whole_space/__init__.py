"""The whole design space (all nine slots, three attempts an episode) on held-out tasks, at equal real executions.

    python -m benchmarks.real_tasks.whole_space estimate   what the rest would cost, from what was executed so far
    python -m benchmarks.real_tasks.whole_space tune       choose each arm's settings on the tuning seeds
    python -m benchmarks.real_tasks.whole_space run        what is missing of the comparison, then the report
    python -m benchmarks.real_tasks.whole_space report     tables and verdicts of the rows that are there
    python -m benchmarks.real_tasks.whole_space pack       put what was executed into benchmarks/data/whole_space

Executions are real. Each script of each task is executed once: arms and seeds share a table on disk, though each pays for
everything that it asks for. There are a million designs of a task, so that a policy's value is no sum over all of them, but the
mean of episodes that it plays, really executed by the same table and not counted. The world model of imagining arms is
``OutcomeModel.pretrained()``, which knows the training tasks, and stays as it is.
"""
