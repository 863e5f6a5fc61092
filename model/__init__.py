"""The system-level model: workloads, tensor vitality, planners, the timing engine and its results.

Data goes left to right and each arrow is a documented, versioned type that can be saved and loaded:
`Workload` -> vitality -> planner (`MigrationPlan`) -> engine (`Result`), against a `System`.
"""
