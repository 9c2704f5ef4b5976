"""Studies on real tasks that can tell: exact policy values, settings tuned for each arm, equal real executions.

    python -m benchmarks.real_tasks tune      choose each arm's settings on the tuning seeds
    python -m benchmarks.real_tasks run       what is missing of the comparison, then the report
    python -m benchmarks.real_tasks report    tables, pictures and verdicts of the rows that are there

A run trains one policy on one held-out task, on the part of the design space that was executed once and for all (family, size and
strength: 225 designs). Training goes through the package's own wrappers and vector environments; only the outcome of an execution
is looked up. So a run costs no execution, and a policy's value is exact: the sum over designs of its probability times the true
reward.
"""
