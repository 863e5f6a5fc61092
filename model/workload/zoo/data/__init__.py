"""The shipped captures, written by `pagetide.model.workload.zoo.build`."""
